"""Two versions of a program: the working tree as it is, and a commit, without touching either.

The commit's files are written into a scratch folder through an index of our own, so that neither
the user's index nor HEAD nor the list of worktrees changes.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from torchdoctor.launch.sandbox import Contents
from torchdoctor.words import Workload
from torchdoctor.words.errors import UsageError

_MOST_CONTENT_BYTES = 256 << 20
_ABSENT, _LINK, _SUBMODULE = "000000", "120000", "160000"  # modes in git's trees


class Reference:
    """A commit of the repository that the program lies in, checked out into a scratch folder.

    Args:
        workload: the program of the working tree.
        ref: what `git rev-parse` understands.

    Raises:
        UsageError: no git, no repository, or no such commit.
    """

    def __init__(self, workload: Workload, ref: str) -> None:
        self.workload, self.ref = workload, ref
        if shutil.which("git") is None:
            raise UsageError("--against needs git, which is not installed here.")
        self.root = Path(self.git("rev-parse", "--show-toplevel", folder=workload.cwd).strip())
        try:
            name = f"{ref}^{{commit}}"
            self.commit = self.git("rev-parse", "--verify", "--quiet", name).strip()
        except UsageError:
            raise UsageError(
                f"There is no commit '{ref}' in {self.root}: name a branch, tag or commit that was "
                "fetched (CI often fetches the last commit alone)."
            ) from None
        self.folder = Path(tempfile.mkdtemp(prefix="torchdoctor-reference-"))
        try:
            self._check_out()
            self._check_script()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def git(self, *arguments: str, folder: str | None = None, **extra: str) -> str:
        """Return what git prints, run in the repository; `extra`: variables of the environment.

        Raises:
            UsageError: git failed.
        """
        result = subprocess.run(
            ["git", *arguments],
            cwd=folder or self.root,
            # Nor may git refresh the user's index on the way.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", **extra},
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
        if result.returncode:
            lines = result.stderr.strip().splitlines() or ["no reason given"]
            raise UsageError(f"git {arguments[0]} failed in {folder or self.root}: {lines[-1]}.")
        return result.stdout

    def git_names(self, *arguments: str) -> list[str]:
        """Return the entries of what git prints with `-z`. Raises UsageError as `git`."""
        return [entry for entry in self.git(*arguments).split("\0") if entry]

    def _check_out(self) -> None:
        index = str(self.folder / ".torchdoctor-index")
        self.git("read-tree", self.commit, GIT_INDEX_FILE=index)
        prefix = f"--prefix={self.folder}/"
        self.git("checkout-index", "--all", "--force", prefix, GIT_INDEX_FILE=index)
        Path(index).unlink(missing_ok=True)

    @property
    def misses_script(self) -> bool:
        """Return True if the script lies outside the repository: both sides run the same."""
        script = self.workload.script
        return script is not None and not Path(script).resolve().is_relative_to(self.root)

    def _check_script(self) -> None:
        """Raise where git does not know the script: it would be compared with itself."""
        script = Path(self.workload.script).resolve() if self.workload.script else None
        if script is None or not script.is_relative_to(self.root):
            return
        path = script.relative_to(self.root)
        if not (self.folder / path).exists():
            raise UsageError(f"There is no {path} in {self.ref}: commit it, or name another one.")

    def submodules(self) -> list[str]:
        """Return the paths of the commit's submodules."""
        entries = self.git_names("ls-tree", "-r", "-z", self.commit)
        return [e.partition("\t")[2] for e in entries if e.startswith(f"{_SUBMODULE} ")]

    @functools.cached_property
    def differing(self) -> dict[str, tuple[str, str]]:
        """Return paths that differ -> their modes in the commit, and at the start.

        Submodules, which stay as they are today, are left out.
        """
        entries = self.git_names("diff", "--raw", "--no-renames", "-z", self.commit, "--")
        modes = [entry[1:].split(" ") for entry in entries[::2]]
        changed = {path: (of[0], of[1]) for path, of in zip(entries[1::2], modes, strict=True)}
        return {path: of for path, of in changed.items() if not set(of) <= {_SUBMODULE, _ABSENT}}

    def contents(self) -> Contents:
        """Return what differs, by path in the working tree: the commit's bytes, None: absent.

        Laid over the working tree this is the commit with today's untracked and ignored files,
        which a program needs for its data, and with today's submodules. The target of a symbolic
        link is text.

        Raises:
            UsageError: the versions differ by more than a launch can be handed.
        """
        contents: dict[str, bytes | str | None] = {}
        size = 0
        for name, (then, _) in self.differing.items():
            there, path = self.folder / name, str(self.root / name)
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
