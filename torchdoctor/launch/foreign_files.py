"""Files of other owners, which an ordinary user's sandbox cannot copy up.

In a user namespace with one id, the kernel refuses (EOVERFLOW) to copy anything up that belongs
to another user or group, also where its permissions let us write. Whatever is made in a folder
copies the folder up. So such folders, and files that are not too large, are put into the layer
beforehand.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable

LOOK_AT_MOST = 20_000  # files and folders
LOOK_AT_MOST_S = 0.3
COPY_AT_MOST_BYTES = 64 << 20  # one file
COPY_ALL_AT_MOST_BYTES = 256 << 20
USUAL = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "XDG_RUNTIME_DIR")


class ForeignFiles:
    """Folders and files to put into the layers, as absolute paths.

    Args:
        interest: files or folders where the program may want to write. The folders above each
            are looked at, and all that lies below those that are folders, within bounds.
    """

    def __init__(self, interest: Iterable[str]) -> None:
        usual = [os.environ[name] for name in USUAL if os.environ.get(name)]
        named = [os.path.realpath(path) for path in interest]
        around = {os.path.realpath(path) for path in [*usual, "/tmp", "/var/tmp"]}
        self._copied_bytes = 0
        self._looked_at = 0
        self._deadline_s = time.monotonic() + LOOK_AT_MOST_S
        self.found = {folder for path in [*named, *around] for folder in self._above(path)}
        for folder in sorted({path for path in named if os.path.isdir(path)}):
            self._search(folder)

    def below(self, folder: str) -> list[str]:
        """Return those below a folder, relative to it, folders before what is in them."""
        start = folder.rstrip("/") + "/"
        return sorted(path[len(start) :] for path in self.found if path.startswith(start))

    def _above(self, path: str) -> list[str]:
        folders = []
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        while folder not in ("/", ""):
            try:
                if _is_foreign(os.stat(folder)):
                    folders.append(folder)
            except OSError:
                pass
            folder = os.path.dirname(folder)
        return folders

    def _search(self, top: str) -> None:
        waiting = [top]
        while waiting and self._looked_at < LOOK_AT_MOST and time.monotonic() < self._deadline_s:
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        self._looked_at += 1
                        if self._take(entry):
                            waiting.append(entry.path)
            except OSError:
                continue

    def _take(self, entry: os.DirEntry[str]) -> bool:
        """Note an entry if it is foreign; whether it is a folder to look into."""
        status = entry.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(status.st_mode)
        if not _is_foreign(status) or not os.access(entry.path, os.W_OK | os.R_OK):
            return is_folder
        if is_folder or (stat.S_ISREG(status.st_mode) and self._has_room_for(status.st_size)):
            self.found.add(entry.path)
        return is_folder

    def _has_room_for(self, size: int) -> bool:
        if size > COPY_AT_MOST_BYTES or self._copied_bytes + size > COPY_ALL_AT_MOST_BYTES:
            return False
        self._copied_bytes += size
        return True


def _is_foreign(status: os.stat_result) -> bool:
    return status.st_uid != os.getuid() or status.st_gid != os.getgid()
