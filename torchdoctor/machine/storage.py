"""The files that an observing launch read: where they lie and how fast that storage is.

Looked at from outside the sandbox, where the real mounts are seen and not the layers over them.
"""

import functools
import os
import random
import shutil
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from torchdoctor.machine.mounts import Mount, kind_of, mount_of, mounts_now
from torchdoctor.probe.hooks import file_reads
from torchdoctor.probe.measure import page_cache
from torchdoctor.schema import MountReads, RemoteReads, StagingPlace, StorageFacts, TableReads
from torchdoctor.schema.location import Location
from torchdoctor.schema.recording import StepStatistics

_CHUNK_BYTES = 128 * 1024
_FIRST_BYTES = 4096
_MOST_BYTES = 8 * 1024 * 1024  # of each file
_MOST_DROP_S = 2.0
_WAITS = 0.01  # share of the step spent on its input, from which on storage is looked at
_STAT_S = 2.0
_MEASURE_S = 1.0  # for each mount
_MEASURED_MOUNTS = 3
_MEASURED_FILES = 256
_NAMED = 4
_TRIED_BYTES = 4 * 1024 * 1024
_SHARED_MEMORY = Path("/dev/shm")
_IN_LOADER = (file_reads.LOADER, file_reads.WORKER)
_OPENS = (*_IN_LOADER, file_reads.TRAINING)


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
    """Read files, cold and then warm, for hardly more than `most_s`; those that can be dropped.

    Nothing of a file is changed, and pages that were cached before are cached again afterwards.
    """
    until = time.perf_counter() + most_s
    cold: list[Reading] = []
    warm: list[Reading] = []
    for path in paths:
        if time.perf_counter() > until:
            break
        with suppress(OSError):
            share = _cached_share(path)
            _drop(path)
            is_dropped = (_cached_share(path) or 0.0) < 0.5
            first = _read(path, until)
            again = _read(path, until)
            if is_dropped and first.count > 0:
                cold.append(first)
            if again.count > 0:
                warm.append(again)
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
    with suppress(OSError):
        for path in listed.read_bytes().splitlines():
            if time.monotonic() > until:
                return
            with suppress(OSError, AttributeError):
                _drop(os.fsdecode(path))


# One read by a library: seconds, and its path, followed by NUL and the user's line if it is known.
_Call = tuple[float, str]


@dataclass(kw_only=True)
class _Read:
    """One file: how often it was opened in each phase."""

    phases: Counter[str] = field(default_factory=Counter)
    cached: list[float] = field(default_factory=list)  # shares, before a process first read of it

    def count(self, *phases: str) -> int:
        return sum(self.phases[phase] for phase in phases)


@dataclass(frozen=True, kw_only=True)
class _Logged:
    """Rows of all processes; files in the order of their first row."""

    files: defaultdict[str, _Read] = field(default_factory=lambda: defaultdict(_Read))
    c_readers: set[str] = field(default_factory=set)
    available: set[str] = field(default_factory=set)
    remote: defaultdict[str, list[_Call]] = field(default_factory=lambda: defaultdict(list))
    tables: defaultdict[str, list[_Call]] = field(default_factory=lambda: defaultdict(list))


def waits_for_input(steps: StepStatistics) -> bool:
    """Return whether the step waits so long for input that storage may have to do with it."""
    waits_s = steps.data_wait_s + steps.loader_start_s + steps.before_forward_s
    return waits_s >= _WAITS * steps.mean_s


def storage_facts(channel: Path, run_folder: Path) -> StorageFacts | None:
    """Return what a launch read in its training loop, listed in `files-read.txt`; None: nothing."""
    logged = _logged(channel)
    loop = _of_the_loop(logged.files)
    if not (loop or logged.c_readers or logged.remote or logged.tables):
        return None
    sizes = _sizes(list(loop))
    with suppress(OSError):
        lines = [os.fsencode(path) + b"\n" for path in loop if path in sizes]
        (run_folder / "files-read.txt").write_bytes(b"".join(lines))
    mounts = mounts_now()

    @functools.cache
    def mount_at(folder: str) -> Mount | None:
        return mount_of(os.path.realpath(folder), mounts)

    groups: dict[Mount, dict[str, _Read]] = defaultdict(dict)
    for path, read in loop.items():
        if path in sizes and (mount := mount_at(os.path.dirname(path))):  # noqa: PTH120
            groups[mount][path] = read

    def uses(mount: Mount) -> int:
        return sum(read.count(*_OPENS, file_reads.HELD) for read in groups[mount].values())

    return StorageFacts(
        mounts=[
            _mount_reads(mount, groups[mount], sizes, measured=number < _MEASURED_MOUNTS)
            for number, mount in enumerate(sorted(groups, key=uses, reverse=True))
        ],
        places=_places(run_folder, mounts) if groups else [],
        remote=[
            RemoteReads(protocol=name, opens=len(calls), **_named(calls))
            for name, calls in logged.remote.items()
        ],
        tables=[
            TableReads(
                function=name,
                calls=len(calls),
                total_s=sum(seconds for seconds, _ in calls),
                **_named(calls),
            )
            for name, calls in logged.tables.items()
        ],
        available=sorted(logged.available),
        alluxio_workers=os.environ.get("ALLUXIO_WORKER_HOSTS"),
        c_readers=sorted(logged.c_readers),
        memory_bytes=psutil.virtual_memory().available,
    )


def _logged(channel: Path) -> _Logged:
    logged = _Logged()
    for log in sorted(channel.glob("files-*.log")):
        for row in log.read_bytes().split(b"\n"):
            letter, tab, text = os.fsdecode(row).partition("\t")
            if tab:
                _sort(logged, letter, text)
    return logged


def _sort(logged: _Logged, letter: str, text: str) -> None:
    if letter == file_reads.C_READER:
        logged.c_readers.add(text)
    elif letter == file_reads.AVAILABLE:
        logged.available.add(text)
    elif letter == file_reads.PAGES:
        share, _, path = text.split(" ", 2)
        logged.files[path].cached.append(float(share))
    elif letter == file_reads.REMOTE:
        phase, name, rest = text.split(" ", 2)
        if phase != file_reads.SETUP:
            logged.remote[name].append((0.0, rest))
    elif letter == file_reads.TABLE:
        phase, name, seconds, rest = text.split(" ", 3)
        if phase != file_reads.SETUP:
            logged.tables[name].append((float(seconds), rest))
    else:
        logged.files[text].phases[letter] += 1


def _named(calls: Sequence[_Call]) -> dict[str, Any]:
    """Return the number of files, one of them, and the user's line that most of the calls name."""
    files = Counter(text.partition("\0")[0] for _, text in calls)
    lines = Counter(line for _, text in calls if (line := text.partition("\0")[2]))
    location = None
    if lines:
        line, _, file = lines.most_common(1)[0][0].partition(" ")
        location = Location(file=file, line=int(line))
    return {"files": len(files), "example": next(iter(files)), "location": location}


def _of_the_loop(reads: dict[str, _Read]) -> dict[str, _Read]:
    """Return files that the loader (or, without one, the training loop) opened or kept open."""
    by_loader = any(read.count(*_IN_LOADER) for read in reads.values())
    wanted = [*(_IN_LOADER if by_loader else _OPENS), file_reads.HELD]
    return {path: read for path, read in reads.items() if read.count(*wanted)}


def _sizes(paths: Sequence[str]) -> dict[str, int]:
    """Return the sizes of regular files outside; late ones, on slow storage, get the mean."""
    until = time.monotonic() + _STAT_S
    sizes: dict[str, int] = {}
    late = []
    for path in random.Random(0).sample(paths, len(paths)):
        if time.monotonic() > until:
            late.append(path)
            continue
        with suppress(OSError):
            status = Path(path).stat()
            if stat.S_ISREG(status.st_mode):
                sizes[path] = status.st_size
    return sizes | dict.fromkeys(late, sum(sizes.values()) // max(len(sizes), 1))


def _mount_reads(
    mount: Mount, reads: dict[str, _Read], sizes: dict[str, int], *, measured: bool
) -> MountReads:
    kind, disk = kind_of(mount)
    sample = random.Random(0).sample(sorted(reads), min(len(reads), _MEASURED_FILES))
    cold, warm = measure(sample if measured and kind != "memory" else [], _MEASURE_S)
    held = [read for read in reads.values() if read.count(file_reads.HELD)]
    file_bytes = sum(sizes[path] for path in reads)
    folders = Counter(str(Path(path).parent) for path in reads)
    # Each worker looks for itself, the first one before anybody has read of it.
    cached = {path: min(read.cached) for path, read in reads.items() if read.cached}
    looked_at = sum(sizes[path] for path in cached)
    cached_bytes = sum(sizes[path] * share for path, share in cached.items())
    return MountReads(
        path=mount.path,
        file_system=mount.kind,
        source=mount.source,
        device=disk,
        kind=kind,
        files=len(reads),
        file_bytes=file_bytes,
        opens=sum(read.count(*_OPENS) for read in reads.values()),
        held=len(held),
        opened_in_c=sum(set(read.phases) == {file_reads.HELD} for read in held),
        looked_at=len(cached),
        cached_at_first=cached_bytes / looked_at if looked_at else None,
        folders=[name for name, _ in folders.most_common(_NAMED)],
        cold_bytes_per_s=bytes_per_s(cold),
        cold_file_s=file_s(cold, file_bytes / len(reads)),
        warm_file_s=file_s(warm, file_bytes / len(reads)),
        latency_s=latency_s(cold),
    )


def _places(run_folder: Path, mounts: Sequence[Mount]) -> list[StagingPlace]:
    places = []
    if _SHARED_MEMORY.is_dir():
        room = min(shutil.disk_usage(_SHARED_MEMORY).free, psutil.virtual_memory().available)
        places.append(StagingPlace(place="memory", kind="memory", free_bytes=room))
    mount = mount_of(str(run_folder.resolve()), mounts)
    if mount is None:
        return places
    tried = run_folder / "read-speed.tmp"
    speed = None
    with suppress(OSError):
        tried.write_bytes(random.Random(0).randbytes(_TRIED_BYTES))
        with tried.open("rb") as file:
            os.fsync(file.fileno())  # what is not yet on the disk cannot be dropped
        speed = bytes_per_s(measure([str(tried)], _MEASURE_S)[0])
    tried.unlink(missing_ok=True)
    free = shutil.disk_usage(run_folder).free
    kind = kind_of(mount)[0]
    disk = StagingPlace(place="disk", kind=kind, free_bytes=free, cold_bytes_per_s=speed)
    return [*places, disk]
