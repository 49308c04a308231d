"""Two versions of a program: the working tree as it is, and a commit, without touching either.

The commit's files are written into a scratch folder through an index of our own, so that neither
the user's index nor HEAD nor the list of worktrees changes. Where no overlay is possible, whatever
names the working tree by its whole path (arguments, PYTHONPATH, an editable install) is made to
name that folder, or the new version would be compared with itself.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from torchdoctor.launch.launch import PROBE
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.launch.sandbox import Contents
from torchdoctor.machine.environment import ask_interpreter
from torchdoctor.schema import Evidence, Workload, fact
from torchdoctor.schema.errors import UsageError

_MOST_CONTENT_BYTES = 256 << 20
_ABSENT, _LINK, _SUBMODULE = "000000", "120000", "160000"  # modes in git's trees
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


class Reference:
    """A commit of the program's repository, checked out into a scratch folder; or UsageError."""

    def __init__(self, workload: Workload, ref: str) -> None:
        self.workload = workload
        self.ref = ref
        if shutil.which("git") is None:
            raise UsageError("--against needs git, which is not installed here.")
        try:
            self.root = Path(self.git("rev-parse", "--show-toplevel", folder=workload.cwd).strip())
        except UsageError as error:
            todo = "Call it in the program's repository, or compare with a report: --baseline."
            raise UsageError(f"--against needs a git repository. {error} {todo}") from None
        try:
            self.commit = self.git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").strip()
        except UsageError:
            raise UsageError(
                f"There is no commit '{ref}' in {self.root}: name a branch, tag or commit that was "
                "fetched (CI often fetches the last commit alone)."
            ) from None
        self.folder = Path(tempfile.mkdtemp(prefix="torchdoctor-reference-"))
        try:
            index = str(self.folder / ".torchdoctor-index")
            self.git("read-tree", self.commit, GIT_INDEX_FILE=index)
            prefix = f"--prefix={self.folder}/"
            self.git("checkout-index", "--all", "--force", prefix, GIT_INDEX_FILE=index)
            Path(index).unlink(missing_ok=True)
            if self.script is not None and not (self.folder / self.script).exists():
                # It would be compared with itself.
                raise UsageError(
                    f"There is no {self.script} in {ref}: commit it, or name another one."
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def git(self, *arguments: str, folder: str | None = None, **extra: str) -> str:
        """Return what git prints in the repository; `extra` are variables. Raises UsageError."""
        # Nor may git refresh the user's index on the way.
        variables = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", **extra}
        result = subprocess.run(
            ["git", *arguments], cwd=folder or self.root, env=variables,
            capture_output=True, text=True, errors="surrogateescape", check=False,
        )  # fmt: skip
        if result.returncode:
            lines = result.stderr.strip().splitlines() or ["no reason given"]
            raise UsageError(f"git {arguments[0]} failed in {folder or self.root}: {lines[-1]}.")
        return result.stdout

    def git_names(self, *arguments: str) -> list[str]:
        """Return the entries of what git prints with `-z`. Raises UsageError as `git`."""
        return [entry for entry in self.git(*arguments).split("\0") if entry]

    @property
    def script(self) -> Path | None:
        """Return the script's path in the repository; None: it has none, or lies outside."""
        script = Path(self.workload.script).resolve() if self.workload.script else None
        inside = script is not None and script.is_relative_to(self.root)
        return script.relative_to(self.root) if script is not None and inside else None

    def submodules(self) -> list[str]:
        """Return the paths of the commit's submodules."""
        entries = self.git_names("ls-tree", "-r", "-z", self.commit)
        return [e.partition("\t")[2] for e in entries if e.startswith(f"{_SUBMODULE} ")]

    @functools.cached_property
    def differing(self) -> dict[str, tuple[str, str]]:
        """Return paths that differ, without submodules -> their modes in the commit, and now."""
        entries = self.git_names("diff", "--raw", "--no-renames", "-z", self.commit, "--")
        modes = [entry[1:].split(" ") for entry in entries[::2]]
        changed = {path: (of[0], of[1]) for path, of in zip(entries[1::2], modes, strict=True)}
        return {path: of for path, of in changed.items() if not set(of) <= {_SUBMODULE, _ABSENT}}

    def contents(self) -> Contents:
        """Return what differs, by path in the working tree: the commit's bytes, None: absent.

        Laid over the working tree this is the commit with today's untracked and ignored files,
        which a program needs for its data, and with today's submodules. The target of a symbolic
        link is text. Raise UsageError if the versions differ by more than a launch can be handed.
        """
        contents: dict[str, bytes | str | None] = {}
        size = 0
        for name, (then, _) in self.differing.items():
            there = self.folder / name
            path = str(self.root / name)
            if then in (_ABSENT, _SUBMODULE):
                contents[path] = None
            elif then == _LINK:
                contents[path] = str(there.readlink())
            else:
                data = there.read_bytes()
                size += len(data)
                contents[path] = data
        if size > _MOST_CONTENT_BYTES:
            raise UsageError(
                f"The working tree and {self.ref} differ by {size >> 20} MB, too much to compare."
            )
        return contents


def elsewhere(reference: Reference) -> tuple[LaunchSpec, list[Evidence]]:
    """Return how the program runs in the scratch folder, linked to what git lacks, and doubts."""
    _link_the_rest(reference)
    _own_repository(reference)
    workload = reference.workload
    doubts = []
    python = workload.python
    imported = None if python is None else ask_interpreter(python, _ASK, workload.cwd)
    if imported is None:
        doubts.append(fact("imports-unknown"))
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
    return replace(UNTOUCHED, workload=moved, variables=variables), doubts


def _moved(reference: Reference, path: str) -> str:
    """Return a path of the working tree as that of the folder; others as they are."""
    inside = Path(path).resolve()
    root = reference.root.resolve()
    if not inside.is_relative_to(root):
        return path
    return str(reference.folder / inside.relative_to(root))


def _moved_argument(reference: Reference, word: str) -> str:
    """Return an argument moved: a whole path, or a path behind `--config=` or `config=`."""
    option, equal, value = word.partition("=")
    if not equal or Path(option).is_absolute():
        option = ""
        equal = ""
        value = word
    with contextlib.suppress(OSError, ValueError):  # too long, or no path at all
        if Path(value).is_absolute() and Path(value).exists():
            value = _moved(reference, value)
    return f"{option}{equal}{value}"


def _link_the_rest(reference: Reference) -> None:
    """Link what git does not hold, and submodules as they are checked out today."""
    untracked = reference.git_names("ls-files", "--others", "--directory", "-z")
    names = [name.rstrip("/") for name in untracked]
    for name in [*names, *reference.submodules()]:
        link = reference.folder / name
        real = reference.root / name
        if link.name == "__pycache__" or not real.exists():
            continue
        with contextlib.suppress(OSError):
            link.rmdir()  # git makes an empty folder for a submodule
        if not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(real)


def _own_repository(reference: Reference) -> None:
    """Make a `.git` whose HEAD is the reference, with an index of its own and shared objects."""
    answer = reference.git("rev-parse", "--git-common-dir").rstrip("\n")
    common = Path(reference.root, answer).resolve()
    git_folder = reference.folder / ".git"
    git_folder.mkdir()
    (git_folder / "commondir").write_text(f"{common}\n")
    (git_folder / "HEAD").write_text(f"{reference.commit}\n")
    reference.git("read-tree", reference.commit, GIT_INDEX_FILE=str(git_folder / "index"))
