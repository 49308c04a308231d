"""The words for what a launch or its layer does, or cannot do, by the names of facts.

An error says them at once; the templates of `reports` are made of them. Figures come as text.
"""

from torchdoctor.schema import Evidence
from torchdoctor.schema.figures import binary_size, counted

WORDS = {
    "files-changed": "{files} of yours changed while it ran, such as {named}.",
    "maybe-killed-for-memory": "So the kernel ends a program where memory runs out: look at the "
    "memory limit of the job or the container, and at what else needs memory here.",
    "scratch-folder-full": "It found no space left, and the limit is torchdoctor's: what a launch "
    "writes goes to the scratch folder in {folder} until the launch ends ({size}, of which {free} "
    "were free). Free space there, or set TMPDIR, or --output, to a folder on a disk with more "
    "room.",
    "scratch-memory-full": "It found no space left, and the limit is torchdoctor's: what a launch "
    "writes goes to memory until the launch ends ({size}, of which {free} were free). Set TMPDIR, "
    "or --output, to a folder on a disk with more room.",
    "maybe-denied-by-sandbox": "It may have been denied by torchdoctor: without namespaces, other "
    "programs and libraries than Python and torch are not let write to your files. If they may, "
    "give --no-sandbox.",
    "trial-did-not-end": "the trial program did not end.",
    "trial-write-stayed": "what was written to {folder} stayed there.",
    "trial-program-failed": "the trial program failed.",
    "trial-saw-others": "the trial program saw another user or folder.",
}


def in_words(evidence: Evidence) -> str:
    """Return such a fact, or a text of others, as an error says it."""
    if evidence.fact == "message":
        return str(evidence.values["message"])
    figures = dict(evidence.values)
    for name, value in evidence.values.items():
        if name.endswith("_bytes"):
            figures[name.removesuffix("_bytes")] = binary_size(value)
        elif name == "files":
            figures[name] = counted(value, "file")
        elif isinstance(value, list):
            figures[name] = ", ".join(value)
    return WORDS[evidence.fact].format(**figures)
