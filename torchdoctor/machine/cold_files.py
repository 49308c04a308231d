"""Files of a loop that are taken out of the page cache again, before each launch after the first.

For data larger than memory: a launch that finds in memory what the one before it has read would
show an input that the real training, which has long read other files by then, never sees.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_MOST_S = 2.0


def drop(listed: Path) -> None:
    """Drop the clean pages of the files named in `listed`, one a line, in this order.

    Nothing of a file is changed; those that there is no time for, or that are gone, are left out.
    """
    until = time.monotonic() + _MOST_S
    try:
        paths = listed.read_bytes().splitlines()
    except OSError:
        return
    for path in paths:
        if time.monotonic() > until:
            return
        with contextlib.suppress(OSError, AttributeError):
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
