"""Files of other owners, which an ordinary user's sandbox cannot copy up.

In a user namespace with one id, the kernel refuses (EOVERFLOW) to copy anything up that belongs
to another user or group, also when its permissions would let us write. A new file in a folder
copies the folder up, so such folders are made in the layer beforehand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

LOOK_AT_MOST = 20_000
LOOK_AT_MOST_S = 0.3
USUAL = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "XDG_RUNTIME_DIR")


def finder(interest: Iterable[str]) -> Callable[[str], list[str]]:
    """A function that names, for a folder, the folders below it to make beforehand.

    Args:
        interest: files or folders where the program may want to write. The folders above each
            are looked at, and all that is below those that are folders, within bounds.
    """
    usual = [os.environ[name] for name in USUAL if os.environ.get(name)]
    named = [os.path.realpath(path) for path in [*interest, *usual, "/tmp", "/var/tmp"]]
    foreign = {folder for path in named for folder in _above(path) if _is_foreign(folder)}
    searched = {os.path.realpath(path) for path in interest if os.path.isdir(path)}
    deadline = time.monotonic() + LOOK_AT_MOST_S
    for folder in searched:
        foreign |= _foreign_below(folder, deadline)

    def below(path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        relative = {folder[len(start) :] for folder in foreign if folder.startswith(start)}
        return sorted(relative)

    return below


def _above(path: str) -> list[str]:
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    found = []
    while folder not in ("/", ""):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


def _is_foreign(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_uid != os.getuid() or status.st_gid != os.getgid()


def _foreign_below(folder: str, deadline: float) -> set[str]:
    found: set[str] = set()
    looked_at = 0
    for path, names, _ in os.walk(folder):
        looked_at += len(names)
        if looked_at > LOOK_AT_MOST or time.monotonic() > deadline:
            break
        for name in names:
            below = os.path.join(path, name)
            if not os.path.islink(below) and _is_foreign(below) and os.access(below, os.W_OK):
                found.add(below)
    return found
