"""The speed of reading files with and without the page cache, measured on some of them.

Nothing of a file is changed, and pages that were cached before are cached again afterwards.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from torchdoctor.probe.measure import page_cache

_CHUNK_BYTES = 128 * 1024
_FIRST_BYTES = 4096
_MOST_BYTES = 8 * 1024 * 1024  # of each file
_MOST_DROP_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Sums over the files read: bytes, seconds in all, and each file's time to its first 4 KiB."""

    read_bytes: int = 0
    seconds: float = 0.0
    first_s: list[float] = field(default_factory=list)
    first_bytes: list[int] = field(default_factory=list)

    def bytes_per_s(self) -> float | None:
        """Return bytes over all of the time, opening included; None: nothing was read."""
        return self.read_bytes / self.seconds if self.seconds > 0 and self.read_bytes else None

    def file_s(self, size: float) -> float | None:
        """Return the time for `size` bytes: the latency, and the rest at the speed after it."""
        latency = self.latency_s()
        if latency is None:
            return None
        rest_s = max(self.seconds - sum(self.first_s), 0.0)
        rest_bytes = self.read_bytes - sum(self.first_bytes)
        per_byte = rest_s / rest_bytes if rest_bytes > 0 else 0.0
        return latency + max(size - _FIRST_BYTES, 0.0) * per_byte

    def latency_s(self) -> float | None:
        """Return the median time to open a file and read its first 4 KiB."""
        return median(self.first_s) if self.first_s else None


@dataclass(frozen=True, kw_only=True)
class ReadSpeed:
    """Passes over some files: from the device, again, and the share cached before (0 to 1)."""

    cold: Passes
    warm: Passes
    cached_share: float | None


def measure(paths: Sequence[str], most_s: float) -> ReadSpeed:
    """Read files cold and warm; those that cannot be read, or not be dropped, are left out.

    Args:
        paths: in the order to read them.
        most_s: ends soon after this, within a file if need be.
    """
    until = time.perf_counter() + most_s
    cold, warm, shares = Passes(), Passes(), []
    for path in paths:
        if time.perf_counter() > until:
            break
        with contextlib.suppress(OSError):
            share = _cached_share(path)
            if share is not None:
                shares.append(share)
            _drop(path)
            if (_cached_share(path) or 0.0) < 0.5:
                cold = _added(cold, _read(path, until))
            else:
                _read(path, until)
            warm = _added(warm, _read(path, until))
            if share is not None and share < 0.5:
                _drop(path)
    return ReadSpeed(
        cold=cold, warm=warm, cached_share=sum(shares) / len(shares) if shares else None
    )


def _added(sums: Passes, reading: tuple[int, float, float]) -> Passes:
    count, seconds, first_s = reading
    if not count:
        return sums
    return Passes(
        read_bytes=sums.read_bytes + count,
        seconds=sums.seconds + seconds,
        first_s=[*sums.first_s, first_s],
        first_bytes=[*sums.first_bytes, min(count, _FIRST_BYTES)],
    )


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # somebody else's file
        descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(path: str, until: float) -> tuple[int, float, float]:
    """Return bytes read, the seconds it took, and the seconds to the first ones."""
    began = time.perf_counter()
    with _opened(path) as descriptor:
        count = len(os.read(descriptor, _FIRST_BYTES))
        first_s = time.perf_counter() - began
        while count < _MOST_BYTES:
            chunk = len(os.read(descriptor, _CHUNK_BYTES))
            count += chunk
            if not chunk or time.perf_counter() > until:
                break
    return count, time.perf_counter() - began, first_s


def _drop(path: str) -> None:
    with _opened(path) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _cached_share(path: str) -> float | None:
    """Return the cached share of the file's first 8 MiB; None where the kernel does not say."""
    cached = page_cache.share_of(path, _MOST_BYTES)
    return None if cached is None else cached[0]


def drop(listed: Path) -> None:
    """Take the files named in `listed`, one a line, out of the page cache, in this order.

    Before each launch after the first, for data larger than memory: a launch that finds in memory
    what the one before it has read would show an input that the real training, which has long read
    other files by then, never sees. Files that are gone or not ours to drop are left out.
    """
    until = time.monotonic() + _MOST_DROP_S
    with contextlib.suppress(OSError):
        for path in listed.read_bytes().splitlines():
            if time.monotonic() > until:
                return
            with contextlib.suppress(OSError, AttributeError):
                _drop(os.fsdecode(path))
