"""Files that a program changed although its writes should not have reached them."""

import contextlib
import functools
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.machine.mounts import unanswered
from torchdoctor.schema import Evidence, fact

LOOK_AT_MOST = 20_000
LOOK_AT_MOST_S = 2.0
_NAMED = 5  # files, in a sentence
_FOREIGN_S = 0.3
_COPY_AT_MOST_BYTES = 64 << 20  # one file
_COPY_ALL_AT_MOST_BYTES = 256 << 20
_USUAL = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "XDG_RUNTIME_DIR")


def walk(
    folders: Iterable[str], most: int, seconds: float, skip: Collection[str] = ()
) -> Iterator[os.DirEntry[str] | None]:
    """Yield what lies in folders and below; None where something is left out.

    Nothing is told of `skip`, nor of a mount that does not answer.
    """
    left_out = {*skip, *unanswered()}
    waiting = sorted({os.path.realpath(path) for path in folders})
    count = 0
    deadline = time.monotonic() + seconds
    visited = set(left_out)
    while waiting:
        folder = waiting.pop(0)
        if folder in visited:
            continue
        visited.add(folder)
        if count >= most or time.monotonic() > deadline:
            yield None
            return
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    count += 1
                    if entry.path in left_out:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    yield entry
        except OSError:
            yield None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Time of change, size, mode and owner of every file below; `whole`: none was left out."""

    files: dict[str, tuple[int, ...]]
    whole: bool

    def changed_since(self, before: "Snapshot") -> list[str]:
        """Return files that are new, changed or gone; of what was left out nothing is said."""
        changed = {path for path, facts in self.files.items() if before.files.get(path) != facts}
        if not before.whole:
            changed &= before.files.keys()
        return sorted(changed | (before.files.keys() - self.files.keys() if self.whole else set()))


def snapshot(folders: Iterable[str], skip: Iterable[str] = ()) -> Snapshot:
    """Look at folders and all below, but for those in `skip`, within bounds of number and time."""
    files: dict[str, tuple[int, ...]] = {}
    whole = True
    left_out = {os.path.realpath(path) for path in skip}
    for entry in walk(folders, LOOK_AT_MOST, LOOK_AT_MOST_S, left_out):
        try:
            if entry is not None and not entry.is_dir(follow_symlinks=False):
                facts = entry.stat(follow_symlinks=False)
                owner = facts.st_mode, facts.st_uid, facts.st_gid
                files[entry.path] = (facts.st_mtime_ns, facts.st_size, *owner)
        except OSError:
            whole = False
        whole = whole and entry is not None
    return Snapshot(files=files, whole=whole)


def escape_doubts(escaped: Collection[str], mode: str) -> list[Evidence]:
    """Return one doubt where writes reached these files, wanted or not, else none."""
    if not escaped:
        return []
    ident = "files-changed-unsandboxed" if mode == "none" else "files-changed-in-sandbox"
    further = len(escaped) - _NAMED
    more = further if further > 0 else None
    named = list(escaped)[:_NAMED]
    return [fact(ident, files=len(escaped), named=named, more=more, sandbox=mode)]


def changed_while_it_ran(escaped: Collection[str]) -> Evidence:
    """Return that writes reached these files, which an error tells beside its cause."""
    return fact("files-changed", files=len(escaped), named=list(escaped)[:_NAMED])


@functools.cache  # a launch leaves everything as it was
def foreign_files(interest: tuple[str, ...]) -> frozenset[str]:
    """Return folders and files of other owners, above and below where a launch may write.

    An ordinary user's sandbox cannot copy them up (EOVERFLOW): they are put into its layers before.
    """
    usual = [path for name in _USUAL if (path := os.environ.get(name))]
    named = [os.path.realpath(path) for path in interest]
    foreign = set()
    for place in (*named, *(os.path.realpath(path) for path in (*usual, "/tmp", "/var/tmp"))):
        for folder in (Path(place), *Path(place).parents)[:-1]:
            with contextlib.suppress(OSError):
                if folder.is_dir() and _is_foreign(folder.stat()):
                    foreign.add(str(folder))
    copied_bytes = 0
    for entry in walk((path for path in named if os.path.isdir(path)), LOOK_AT_MOST, _FOREIGN_S):
        if entry is None:
            continue
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if not _is_foreign(status) or not os.access(entry.path, os.W_OK | os.R_OK):
                continue
            room = min(_COPY_AT_MOST_BYTES, _COPY_ALL_AT_MOST_BYTES - copied_bytes)
            if stat.S_ISREG(status.st_mode) and status.st_size <= room:
                copied_bytes += status.st_size
                foreign.add(entry.path)
            elif stat.S_ISDIR(status.st_mode):
                foreign.add(entry.path)
    return frozenset(foreign)


def _is_foreign(status: os.stat_result) -> bool:
    return status.st_uid != os.getuid() or status.st_gid != os.getgid()
