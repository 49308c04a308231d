"""`os.scandir` of a folder that is partly in the layer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


class Entry:
    """Like os.DirEntry, with the path that the program knows."""

    def __init__(self, folder: Any, name: str, target: str) -> None:
        as_bytes = isinstance(folder, bytes)
        self.name: Any = os.fsencode(name) if as_bytes else name
        self.path: Any = os.path.join(os.fspath(folder), self.name)
        self._target = target

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a folder."""
        if not follow_symlinks and os.path.islink(self._target):
            return False
        return os.path.isdir(self._target)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a file."""
        if not follow_symlinks and os.path.islink(self._target):
            return False
        return os.path.isfile(self._target)

    def is_symlink(self) -> bool:
        """Return whether it is a symbolic link."""
        return os.path.islink(self._target)

    def is_junction(self) -> bool:
        """Return False: this sandbox is not for Windows."""
        return False

    def inode(self) -> int:
        """Return the number of the file that stands for it."""
        return os.lstat(self._target).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status of the file that stands for it."""
        return os.stat(self._target, follow_symlinks=follow_symlinks)


class Entries:
    """An iterator and context manager, as scandir returns one."""

    def __init__(self, folder: Any, names: dict[str, str]) -> None:
        self._entries = iter([Entry(folder, name, path) for name, path in names.items()])

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End: nothing is left after this."""
        self._entries = iter([])
