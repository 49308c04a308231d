"""Files that a program changed although its writes should not have reached them."""

import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

LOOK_AT_MOST = 20_000
LOOK_AT_MOST_S = 2.0


def walk(
    folders: Iterable[str], most: int, seconds: float, skip: Collection[str] = ()
) -> Iterator[os.DirEntry[str] | None]:
    """Yield what lies in folders and below, but for `skip`; None where something is left out."""
    waiting = sorted({os.path.realpath(path) for path in folders})
    count, deadline, visited = 0, time.monotonic() + seconds, set(skip)
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
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    yield entry
        except OSError:
            yield None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Time of change and size of every file below some folders; `whole`: none was left out."""

    files: dict[str, tuple[int, int]]
    whole: bool

    def changed_since(self, before: "Snapshot") -> list[str]:
        """Return files that are new, changed or gone; of what was left out nothing is said."""
        changed = {path for path, facts in self.files.items() if before.files.get(path) != facts}
        if not before.whole:
            changed &= before.files.keys()
        return sorted(changed | (before.files.keys() - self.files.keys() if self.whole else set()))


def snapshot(folders: Iterable[str], skip: Iterable[str] = ()) -> Snapshot:
    """Look at folders and all below, but for those in `skip`, within bounds of number and time."""
    files, whole = {}, True
    left_out = {os.path.realpath(path) for path in skip}
    for entry in walk(folders, LOOK_AT_MOST, LOOK_AT_MOST_S, left_out):
        try:
            if entry is not None and not entry.is_dir(follow_symlinks=False):
                facts = entry.stat(follow_symlinks=False)
                files[entry.path] = (facts.st_mtime_ns, facts.st_size)
        except OSError:
            whole = False
        whole = whole and entry is not None
    return Snapshot(files=files, whole=whole)


def escape_doubt(escaped: Collection[str], mode: str) -> list[str]:
    """Return one doubt where writes reached these files in spite of a sandbox, else none."""
    if not escaped:
        return []
    named = ", ".join(list(escaped)[:5])
    noun = "writes" if len(escaped) > 1 else "write"
    return [f"{len(escaped)} {noun} reached your files in spite of the '{mode}' sandbox: {named}."]
