"""The share of a file that lies in the page cache; nothing of it is read to see that."""

import functools
import mmap
import os

_WHOLE_BYTES = 8 * 1024 * 1024  # of longer files, stretches are looked at
_STRETCHES = 64
_STRETCH_BYTES = 64 * 1024
_LOWEST_BIT = bytes(number & 1 for number in range(256))  # the others mean nothing
_LOOKS = 16  # offsets looked at where the pages cannot be listed


def share_of(path: str, most_bytes: int | None = None) -> tuple[float, int] | None:
    """Return the share of a file that is cached, 0 to 1, and its size; None where nobody says.

    Args:
        path: of a regular file.
        most_bytes: its first bytes alone; None: all of it.

    Raises:
        OSError: it cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        size = status.st_size if most_bytes is None else min(status.st_size, most_bytes)
        if not size:
            return None
        # To others the kernel lists every page as cached.
        if status.st_uid == os.getuid() or os.access(path, os.W_OK):
            share = _listed(descriptor, size)
        else:
            share = _looked_at(descriptor, size)
        return None if share is None else (share, status.st_size)
    finally:
        os.close(descriptor)


@functools.lru_cache(maxsize=1)
def _mincore():
    """Return ctypes, and the C library's mincore; None where there is none."""
    try:
        import ctypes

        return ctypes, ctypes.CDLL(None, use_errno=True).mincore
    except (ImportError, OSError, AttributeError, TypeError):
        return None


def _listed(descriptor, size):
    if _mincore() is None:
        return None
    cached = pages = 0
    try:
        for offset, length in _stretches(size):
            there = _pages(*_mincore(), descriptor, offset, length)
            if there is None:
                return None
            cached, pages = cached + there.count(1), pages + len(there)
    except (OSError, ValueError):  # FUSE without a cache cannot be mapped
        return _looked_at(descriptor, size)
    return cached / pages


def _stretches(size):
    """Return (offset, length) of what is looked at of a file."""
    if size <= _WHOLE_BYTES:
        return [(0, size)]
    grain = mmap.ALLOCATIONGRANULARITY
    step = (size - _STRETCH_BYTES) / (_STRETCHES - 1)
    return [(int(n * step) // grain * grain, _STRETCH_BYTES) for n in range(_STRETCHES)]


def _pages(ctypes, mincore, descriptor, offset, length):
    """Return a byte for each page, 1: it is cached; None: nobody says."""
    flags = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    # A private mapping, so that its address can be had; no page of it is ever touched.
    with mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=offset) as mapped:
        first = ctypes.c_ubyte.from_buffer(mapped)
        address = ctypes.c_void_p(ctypes.addressof(first))
        failed = mincore(address, ctypes.c_size_t(length), flags)
        del first
    return None if failed else bytes(flags).translate(_LOWEST_BIT)


def _looked_at(descriptor, size):
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    cached = 0
    for number in range(_LOOKS):
        offset = number * (size - 1) // (_LOOKS - 1)
        try:
            cached += bool(os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT))
        except BlockingIOError:
            continue
        except OSError:
            return None  # this file system cannot answer
    return cached / _LOOKS
