"""The reference where no overlay is possible: in a folder of its own, kept from the working tree's.

Whatever names the working tree by its whole path (arguments, PYTHONPATH, an editable install) is
made to name the reference's folder, or the new version would be compared with itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchdoctor.gate.versions import Reference
from torchdoctor.launch.launch_environment import PROBE
from torchdoctor.words import Workload

_ASK_TIMEOUT_S = 60.0
# What an interpreter imports from, but for its own folders: .pth files, and the finders that
# setuptools writes for editable installs.
_ASK = """
import json, os, sys
found = [path for path in sys.path if path]
for name, module in list(sys.modules.items()):
    if name.startswith("__editable__"):
        for package, path in dict(getattr(module, "MAPPING", {})).items():
            if os.path.basename(path).split(".")[0] == package.rpartition(".")[2]:
                found.append(os.path.dirname(path))
own = [os.path.realpath(p) + os.sep for p in (sys.prefix, sys.exec_prefix, sys.base_prefix)]
found = [p for p in found if not (os.path.realpath(p) + os.sep).startswith(tuple(own))]
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """The reference's program in the scratch folder.

    variables: of the environment of each of its launches.
    """

    workload: Workload
    variables: dict[str, str]
    doubts: list[str] = field(default_factory=list)


def elsewhere(reference: Reference) -> Elsewhere:
    """Return the program in the scratch folder, with links to what git does not hold.

    Args:
        reference: checked out; its folder is added to.
    """
    _link_the_rest(reference)
    _own_repository(reference)
    workload, doubts = reference.workload, []
    imported = _imported_from(workload)
    if imported is None:
        doubts.append(
            "Which folders the reference's interpreter imports from is not known: an editable "
            "install of the working tree would be the new version's on both sides."
        )
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    further = [path for path in imported or [] if _moved(reference, path) != path]
    paths = [_moved_argument(reference, path) for path in dict.fromkeys([*given, *further])]
    first, *rest = workload.command
    moved = replace(
        workload,
        command=[first, *(_moved_argument(reference, word) for word in rest)],
        cwd=_moved(reference, workload.cwd),
        script=None if workload.script is None else _moved(reference, workload.script),
    )
    variables = {"PYTHONPATH": os.pathsep.join([str(PROBE), *paths])}
    return Elsewhere(workload=moved, variables=variables, doubts=doubts)


def _moved(reference: Reference, path: str) -> str:
    """Return a path of the working tree as that of the folder; others as they are."""
    inside, root = Path(path).resolve(), reference.root.resolve()
    if not inside.is_relative_to(root):
        return path
    return str(reference.folder / inside.relative_to(root))


def _moved_argument(reference: Reference, word: str) -> str:
    """Return an argument moved: a whole path, or a path behind `--config=` or `config=`."""
    option, equal, value = word.partition("=")
    if not equal or Path(option).is_absolute():
        option, equal, value = "", "", word
    with contextlib.suppress(OSError, ValueError):  # too long, or no path at all
        if Path(value).is_absolute() and Path(value).exists():
            value = _moved(reference, value)
    return f"{option}{equal}{value}"


def _imported_from(workload: Workload) -> Sequence[str] | None:
    """Return folders beside the interpreter's own that it imports from; None: not known."""
    if workload.python is None:
        return None
    try:
        ended = subprocess.run(
            [workload.python, "-c", _ASK], cwd=workload.cwd, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_ASK_TIMEOUT_S, check=True,
        )  # fmt: skip
        folders = json.loads(ended.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return [str(path) for path in folders]


def _link_the_rest(reference: Reference) -> None:
    """Link what git does not hold, and submodules as they are checked out today."""
    untracked = reference.git_names("ls-files", "--others", "--directory", "-z")
    names = [name.rstrip("/") for name in untracked]
    for name in [*names, *reference.submodules()]:
        link, real = reference.folder / name, reference.root / name
        if link.name == "__pycache__" or not real.exists():
            continue
        with contextlib.suppress(OSError):
            link.rmdir()  # git makes an empty folder for a submodule
        if not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(real)


def _own_repository(reference: Reference) -> None:
    """Make a `.git` that answers `git rev-parse HEAD` with the reference's commit.

    It shares the objects, as one of `git worktree add` does, but stands in no list, and what a
    program does to its index or HEAD is done to these.
    """
    answer = reference.git("rev-parse", "--git-common-dir").rstrip("\n")
    common = Path(reference.root, answer).resolve()
    own = reference.folder / ".git"
    own.mkdir()
    (own / "commondir").write_text(f"{common}\n")
    (own / "HEAD").write_text(f"{reference.commit}\n")
    reference.git("read-tree", reference.commit, GIT_INDEX_FILE=str(own / "index"))
