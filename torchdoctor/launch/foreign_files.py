"""Files of other owners, which an ordinary user's sandbox cannot copy up (EOVERFLOW).

So folders, and files that are not too large, are put into the layer beforehand.
"""

import contextlib
import functools
import os
import stat
from pathlib import Path

from torchdoctor.launch.escaped_writes import walk

LOOK_AT_MOST = 20_000  # files and folders
LOOK_AT_MOST_S = 0.3
COPY_AT_MOST_BYTES = 64 << 20  # one file
COPY_ALL_AT_MOST_BYTES = 256 << 20
USUAL = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "XDG_RUNTIME_DIR")


@functools.cache  # a launch leaves everything as it was
def foreign_files(interest: tuple[str, ...]) -> frozenset[str]:
    """Return folders and files to put into the layers, above and below where it may write."""
    usual = [path for name in USUAL if (path := os.environ.get(name))]
    named = [os.path.realpath(path) for path in interest]
    foreign = set()
    for place in (*named, *(os.path.realpath(path) for path in (*usual, "/tmp", "/var/tmp"))):
        for folder in (Path(place), *Path(place).parents)[:-1]:
            with contextlib.suppress(OSError):
                if folder.is_dir() and _is_foreign(folder.stat()):
                    foreign.add(str(folder))
    copied_bytes = 0
    for entry in walk((x for x in named if os.path.isdir(x)), LOOK_AT_MOST, LOOK_AT_MOST_S):
        if entry is None:
            continue
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if not _is_foreign(status) or not os.access(entry.path, os.W_OK | os.R_OK):
                continue
            room = min(COPY_AT_MOST_BYTES, COPY_ALL_AT_MOST_BYTES - copied_bytes)
            if stat.S_ISREG(status.st_mode) and status.st_size <= room:
                copied_bytes += status.st_size
                foreign.add(entry.path)
            elif stat.S_ISDIR(status.st_mode):
                foreign.add(entry.path)
    return frozenset(foreign)


def _is_foreign(status: os.stat_result) -> bool:
    return status.st_uid != os.getuid() or status.st_gid != os.getgid()
