"""The share of a file that lies in the page cache; nothing of it is read to see that."""

import functools
import mmap
import os

_WHOLE_BYTES = 8 * 1024 * 1024  # of longer files, stretches are looked at
_STRETCHES = 64
_STRETCH_BYTES = 64 * 1024
_LOOKS = 16  # offsets looked at where the pages cannot be listed


def share_of(path: str, most_bytes: int | None = None) -> tuple[float, int] | None:
    """Return the share of a file's first bytes that is cached, and its size; None: nobody says."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        status = os.fstat(descriptor)
        size = status.st_size if most_bytes is None else min(status.st_size, most_bytes)
        if not size:
            return None
        # To others the kernel lists every page as cached.
        is_own = status.st_uid == os.getuid() or os.access(path, os.W_OK)
        try:
            share = (_listed if is_own else _looked_at)(descriptor, size)
        except ValueError:
            share = _looked_at(descriptor, size)
        except (ImportError, OSError, AttributeError, TypeError):
            return None
        return share, status.st_size
    finally:
        os.close(descriptor)


@functools.lru_cache(maxsize=1)
def _mincore():
    import ctypes

    return ctypes, ctypes.CDLL(None, use_errno=True).mincore


def _listed(descriptor, size):
    """Return the share of pages that the kernel lists; ValueError: the file cannot be mapped."""
    ctypes, mincore = _mincore()
    stretches = [(0, size)]
    pages = bytearray()
    if size > _WHOLE_BYTES:
        step = (size - _STRETCH_BYTES) / (_STRETCHES - 1)
        grain = mmap.ALLOCATIONGRANULARITY
        offsets = [int(n * step) // grain * grain for n in range(_STRETCHES)]
        stretches = [(offset, _STRETCH_BYTES) for offset in offsets]
    for offset, length in stretches:
        flags = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
        try:  # a private mapping, so that its address can be had; no page of it is ever touched
            mapped = mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=offset)
        except OSError as error:  # FUSE without a cache
            raise ValueError from error
        with mapped:
            first = ctypes.c_ubyte.from_buffer(mapped)
            failed = mincore(
                ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), flags
            )
            del first
        if failed:
            raise OSError(ctypes.get_errno(), "mincore")
        pages += bytes(flags)
    return sum(page & 1 for page in pages) / len(pages)


def _looked_at(descriptor, size):
    cached = 0
    for number in range(_LOOKS):
        offset = number * (size - 1) // (_LOOKS - 1)
        try:
            cached += bool(os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT))
        except BlockingIOError:
            continue
    return cached / _LOOKS
