"""The files that stand for others while writes are redirected: a layer over the real tree.

A path's *upper* is scratch/<absolute path>. What was removed is remembered by a mark below
scratch/.gone, on disk because the program's children share the layer. A mark stays for good: the
upper of a path wins over it, and what a removed folder held stays hidden when it is made again.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from typing import Any

_MOST_LINKS = 40  # one after the other; a loop of links ends there, as in the kernel
_SYSTEM = ("/dev", "/proc", "/sys")


class Layer:
    """Paths of one launch.

    Args:
        scratch: folder of the layer; it and what it holds are written directly.
        exempt: other folders that are written directly.
    """

    def __init__(self, scratch: str, exempt: list[str]) -> None:
        self.scratch = os.path.realpath(scratch)
        self._gone = os.path.join(self.scratch, ".gone")
        folders = [self.scratch, *map(os.path.realpath, exempt), *_SYSTEM]
        self._exempt = tuple(folder.rstrip(os.sep) + os.sep for folder in folders)
        # Sockets are bound there by name, in C. (tempfile itself must not be imported yet: it
        # keeps the `os.unlink` that it finds.)
        temporary = os.environ.get("TMPDIR") or "/tmp"
        self._sockets = os.path.join(os.path.realpath(temporary), "pymp-")
        self._busy = threading.local()

    def __enter__(self) -> None:
        """Let this thread's calls go to the real files until left: the layer works on itself."""
        self._busy.depth = getattr(self._busy, "depth", 0) + 1

    def __exit__(self, *_: Any) -> None:
        self._busy.depth -= 1

    @property
    def busy(self) -> bool:
        """Return whether this thread is inside the layer's own work."""
        return getattr(self._busy, "depth", 0) > 0

    def name(self, path: Any, follow: bool = False) -> str:
        """Return the absolute path, the links in its folders resolved as the program sees them.

        Args:
            path: as the program wrote it.
            follow: its last part is resolved too.
        """
        text = os.path.abspath(os.path.join(self.cwd(), os.fsdecode(path)))
        folder, last = os.path.split(text)
        name = os.path.join(self._resolve(folder), last) if last else text
        return self._resolve(name) if follow else name

    def _resolve(self, path: str) -> str:
        name, parts, links = os.sep, path.split(os.sep)[::-1], 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                name = os.path.dirname(name)
                continue
            below = os.path.join(name, part)
            target = below if self.is_exempt(below) else self.for_read(below)
            if not os.path.islink(target) or links >= _MOST_LINKS:
                name = below
                continue
            links += 1
            text = self.lower(os.readlink(target))
            name = os.sep if os.path.isabs(text) else name
            parts += text.split(os.sep)[::-1]
        return name

    def is_exempt(self, name: str) -> bool:
        """Return whether a path is written directly."""
        return (name + os.sep).startswith(self._exempt) or name.startswith(self._sockets)

    def upper(self, name: str) -> str:
        """Return where writes to a path go."""
        return self.scratch + os.path.splitdrive(name)[1]

    def lower(self, path: str) -> str:
        """Return the path that an upper stands for; any other path as it is."""
        if path == self.scratch:
            return os.sep
        inside = path.startswith(self.scratch + os.sep)
        return path[len(self.scratch) :] if inside else path

    def cwd(self) -> str:
        """Return the working folder as the program knows it."""
        return self.lower(os.getcwd())

    def is_gone(self, name: str) -> bool:
        """Return whether the real file, or a folder around it, was removed."""
        if not os.path.isdir(self._gone):
            return False
        while name and name != os.path.dirname(name):
            if os.path.lexists(self._mark(name)):
                return True
            name = os.path.dirname(name)
        return False

    def exists(self, name: str) -> bool:
        """Return whether the program sees something there."""
        return os.path.lexists(self.upper(name)) or (
            os.path.lexists(name) and not self.is_gone(name)
        )

    def is_folder(self, name: str) -> bool:
        """Return whether the program sees a folder there."""
        upper = self.upper(name)
        if os.path.lexists(upper):
            return os.path.isdir(upper)
        return os.path.isdir(name) and not self.is_gone(name)

    def for_read(self, name: str) -> str:
        """Return the file that a reader gets; one that does not exist where none is to be seen."""
        upper = self.upper(name)
        return upper if os.path.lexists(upper) or self.is_gone(name) else name

    def for_write(self, name: str, keep: bool) -> str:
        """Return the file that a writer gets, its folder made.

        Args:
            name: what the program wants to write.
            keep: its content is wanted (appending, updating), so it is copied first.

        Raises:
            FileNotFoundError: its folder does not exist for the program.
        """
        upper = self.upper(name)
        self.make_folders(os.path.dirname(name), name)
        if keep and not os.path.lexists(upper) and self.exists(name):
            self._copy(name, upper)
        return upper

    def make_folders(self, folder: str, wanted_by: str) -> None:
        """Make the upper of a folder that the program sees."""
        if not self.is_folder(folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), wanted_by)
        os.makedirs(self.upper(folder), exist_ok=True)

    def listing(self, name: str) -> dict[str, str]:
        """Return names in a folder as the program sees it, with the files that stand for them."""
        upper, files = self.upper(name), {}
        if os.path.isdir(name) and not self.is_gone(name):
            for entry in os.listdir(name):
                path = os.path.join(name, entry)
                if path + os.sep != self.scratch + os.sep and not self.is_gone(path):
                    files[entry] = path
        if os.path.isdir(upper):
            hidden = {".gone"} if upper == self.scratch else set()
            entries = [e for e in os.listdir(upper) if e not in hidden]
            files.update({e: os.path.join(upper, e) for e in entries})
        return files

    def remove(self, name: str) -> None:
        """Hide the real file; what is in the layer was removed by the caller."""
        if os.path.lexists(name):
            mark = self._mark(name)
            os.makedirs(os.path.dirname(mark), exist_ok=True)
            with open(mark, "wb"):
                pass

    def copy_tree(self, name: str) -> str:
        """Copy all that the program sees at and below a path into the layer; its upper."""
        upper = self.for_write(name, keep=True)
        if os.path.isdir(upper) and not os.path.islink(upper):
            for entry in self.listing(name):
                self.copy_tree(os.path.join(name, entry))
        return upper

    def _mark(self, name: str) -> str:
        return self._gone + os.path.splitdrive(name)[1] + ".mark"

    def _copy(self, name: str, upper: str) -> None:
        kind = os.lstat(name).st_mode
        if stat.S_ISDIR(kind):
            os.makedirs(upper, exist_ok=True)
        else:
            shutil.copy2(name, upper, follow_symlinks=False)
