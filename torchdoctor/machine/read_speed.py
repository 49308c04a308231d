"""The speed of reading files with and without the page cache, measured on some of them.

Nothing of a file is changed, and pages that were cached before are cached again afterwards.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from torchdoctor.probe.measure import page_cache

_CHUNK_BYTES = 128 * 1024
_FIRST_BYTES = 4096
_MOST_BYTES = 8 * 1024 * 1024  # of each file
_MOST_DROP_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One file: bytes read, seconds with opening it, and seconds to its first 4 KiB."""

    count: int
    seconds: float
    first_s: float


def bytes_per_s(readings: Sequence[Reading]) -> float | None:
    """Return bytes over all of the time, opening included; None: nothing was read."""
    seconds = sum(reading.seconds for reading in readings)
    return sum(reading.count for reading in readings) / seconds if seconds > 0 else None


def latency_s(readings: Sequence[Reading]) -> float | None:
    """Return the median time to open a file and read its first 4 KiB; None: nothing was read."""
    return median(reading.first_s for reading in readings) if readings else None


def file_s(readings: Sequence[Reading], size: float) -> float | None:
    """Return the time for `size` bytes: the latency, and the rest at the speed after it."""
    latency = latency_s(readings)
    rest_s = sum(reading.seconds - reading.first_s for reading in readings)
    rest_bytes = sum(max(reading.count - _FIRST_BYTES, 0) for reading in readings)
    per_byte = rest_s / rest_bytes if rest_bytes else 0.0
    return None if latency is None else latency + max(size - _FIRST_BYTES, 0.0) * per_byte


def measure(paths: Sequence[str], most_s: float) -> tuple[list[Reading], list[Reading]]:
    """Read files, cold and then warm, for hardly more than `most_s`; those that can be dropped."""
    until = time.perf_counter() + most_s
    cold: list[Reading] = []
    warm: list[Reading] = []
    for path in paths:
        if time.perf_counter() > until:
            break
        with contextlib.suppress(OSError):
            share = _cached_share(path)
            _drop(path)
            is_dropped = (_cached_share(path) or 0.0) < 0.5
            first, again = _read(path, until), _read(path, until)
            cold += [first] * (is_dropped and first.count > 0)
            warm += [again] * (again.count > 0)
            if share is not None and share < 0.5:
                _drop(path)
    return cold, warm


def _read(path: str, until: float) -> Reading:
    began = time.perf_counter()
    with Path(path).open("rb", buffering=0) as file:
        count = len(file.read(_FIRST_BYTES))
        first_s = time.perf_counter() - began
        while count < _MOST_BYTES:
            chunk = len(file.read(_CHUNK_BYTES))
            count += chunk
            if not chunk or time.perf_counter() > until:
                break
    return Reading(count=count, seconds=time.perf_counter() - began, first_s=first_s)


def _drop(path: str) -> None:
    with Path(path).open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cached_share(path: str) -> float | None:
    """Return the cached share of the file's first 8 MiB; None where the kernel does not say."""
    cached = page_cache.share_of(path, _MOST_BYTES)
    return None if cached is None else cached[0]


def drop(listed: Path) -> None:
    """Take the files named in `listed`, one a line, out of the page cache, in this order.

    A launch that finds in memory what the one before it has read would show an input that training
    on data larger than memory never sees. Files that are gone or not ours are left out.
    """
    until = time.monotonic() + _MOST_DROP_S
    with contextlib.suppress(OSError):
        for path in listed.read_bytes().splitlines():
            if time.monotonic() > until:
                return
            with contextlib.suppress(OSError, AttributeError):
                _drop(os.fsdecode(path))
