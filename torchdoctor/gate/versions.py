"""Two versions of a program: the working tree as it is, and a commit, without touching either.

The commit's files are written into a scratch folder through an index of our own, so that neither
the user's index nor HEAD nor the list of worktrees changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from torchdoctor.errors import UsageError
from torchdoctor.records import Workload

_MOST_CONTENT_BYTES = 256 << 20


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
        self.root = Path(self._git("rev-parse", "--show-toplevel", folder=workload.cwd).strip())
        try:
            name = f"{ref}^{{commit}}"
            self.commit = self._git("rev-parse", "--verify", "--quiet", name).strip()
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

    def _git(self, *arguments: str, folder: str | None = None, **extra: str) -> str:
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
            said = result.stderr.strip().splitlines() or ["no reason given"]
            raise UsageError(f"git {arguments[0]} failed in {folder or self.root}: {said[-1]}.")
        return result.stdout

    def _check_out(self) -> None:
        index = str(self.folder / ".torchdoctor-index")
        self._git("read-tree", self.commit, GIT_INDEX_FILE=index)
        prefix = f"--prefix={self.folder}/"
        self._git("checkout-index", "--all", "--force", prefix, GIT_INDEX_FILE=index)
        Path(index).unlink(missing_ok=True)

    def _check_script(self) -> None:
        """What git does not know is the same on both sides, and would be compared with itself."""
        script = Path(self.workload.script).resolve() if self.workload.script else None
        if script is None or not script.is_relative_to(self.root):
            return
        path = script.relative_to(self.root)
        if not (self.folder / path).exists():
            raise UsageError(f"There is no {path} in {self.ref}: commit it, or name another one.")

    def contents(self) -> dict[str, bytes | None]:
        """What differs from the working tree, by path there: the commit's bytes, None: absent.

        Laid over the working tree this is the commit with today's untracked and ignored files,
        which a program needs for its data.

        Raises:
            UsageError: the versions differ by more than a launch can be handed.
        """
        changed = self._git("diff", "--name-only", "--no-renames", "-z", self.commit, "--")
        found: dict[str, bytes | None] = {}
        size = 0
        for name in filter(None, changed.split("\0")):
            there = self.folder / name
            if there.is_dir():
                continue  # a submodule
            if there.is_file():
                data = there.read_bytes()
                size += len(data)
                found[str(self.root / name)] = data
            else:
                found[str(self.root / name)] = None
        # Untracked today, but part of the commit.
        for name in filter(None, self._git("ls-files", "--others", "-z").split("\0")):
            there = self.folder / name
            if there.is_file():
                found[str(self.root / name)] = there.read_bytes()
        if size > _MOST_CONTENT_BYTES:
            raise UsageError(
                f"The working tree and {self.ref} differ by {size >> 20} MB, too much to compare."
            )
        return found

    def elsewhere(self) -> Workload:
        """The program in the scratch folder, its untracked files linked: without an overlay."""
        for name in filter(
            None, self._git("ls-files", "--others", "--directory", "-z").split("\0")
        ):
            link = self.folder / name.rstrip("/")
            if not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(self.root / name.rstrip("/"))

        def moved(path: str) -> str:
            inside = Path(path).resolve()
            if not inside.is_relative_to(self.root.resolve()):
                return path
            return str(self.folder / inside.relative_to(self.root.resolve()))

        def moved_word(word: str) -> str:
            # What is named by its whole path must not be the working tree's.
            there = Path(word)
            return moved(word) if there.is_absolute() and there.exists() else word

        first, *rest = self.workload.command
        script = self.workload.script
        return Workload(
            command=[first, *map(moved_word, rest)],
            cwd=moved(self.workload.cwd),
            python=self.workload.python,
            script=None if script is None else moved(script),
        )
