"""The files that an observing launch read: where they lie and how fast that storage is.

Looked at from outside the sandbox, where the real mounts are seen and not the layers over them.
"""

from __future__ import annotations

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

import psutil

from torchdoctor.machine.mounts import Mount, kind_of, mount_of, mounts_now
from torchdoctor.machine.read_speed import ReadSpeed, measure
from torchdoctor.probe.hooks import file_reads, library_reads
from torchdoctor.words.environment import (
    MountReads,
    RemoteReads,
    StagingPlace,
    StorageFacts,
    TableReads,
)
from torchdoctor.words.program import Location
from torchdoctor.words.recording import StepStatistics

_WAITS = 0.01  # share of the step spent on its input, from which on storage is looked at
_STAT_S = 2.0
_MEASURE_S = 1.0  # for each mount
_MEASURED_MOUNTS = 3
_MEASURED_FILES = 256
_NAMED = 4
_TRIED_BYTES = 4 * 1024 * 1024
_SHARED_MEMORY = Path("/dev/shm")
_IN_LOOP = (file_reads.LOADER, file_reads.WORKER)


@dataclass(kw_only=True)
class _Read:
    """One file: how often it was opened in each phase, and its size."""

    phases: Counter[str] = field(default_factory=Counter)
    size: int = 0
    cached: float | None = None  # share of it, before training first read of it

    def note_cached(self, share: float) -> None:
        # Each worker looks for itself, the first one before anybody has read of it.
        self.cached = min(share, 1.0 if self.cached is None else self.cached)


def waits_for_input(steps: StepStatistics) -> bool:
    """Return whether the step waits so long for input that storage may have to do with it."""
    waits_s = steps.data_wait_s + steps.loader_start_s + steps.before_forward_s
    return waits_s >= _WAITS * steps.mean_s


def storage_facts(channel: Path, run_folder: Path) -> StorageFacts | None:
    """Return what the launch of this channel read in its training loop; None: nothing.

    Args:
        channel: with `files-<pid>.log`.
        run_folder: its disk is where files could be staged; the paths read are listed in its
            `files-read.txt`, one a line in the order of first reading.
    """
    logged = _logged(channel)
    loop = _of_the_loop(logged.files)
    if not (loop or logged.c_readers or logged.remote or logged.tables):
        return None
    _stat_all(loop)
    listed = run_folder / "files-read.txt"
    with suppress(OSError):
        listed.write_bytes(b"".join(os.fsencode(path) + b"\n" for path in loop))
    mounts = mounts_now()
    groups: dict[str, dict[str, _Read]] = defaultdict(dict)
    by_path = {mount.path: mount for mount in mounts}
    of_folder: dict[str, Mount | None] = {}
    for path, read in loop.items():
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in of_folder:
            of_folder[folder] = mount_of(os.path.realpath(folder), mounts)
        if mount := of_folder[folder]:
            groups[mount.path][path] = read
    ranked = sorted(groups, key=lambda name: -_weight(groups[name]))
    mount_reads = [
        _mount_reads(by_path[name], groups[name], measured=number < _MEASURED_MOUNTS)
        for number, name in enumerate(ranked)
    ]
    places = _places(run_folder, mounts) if mount_reads else []
    return StorageFacts(
        mounts=mount_reads,
        places=places,
        remote=_remote(logged.remote),
        tables=_tables(logged.tables),
        available=sorted(logged.available),
        alluxio_workers=os.environ.get("ALLUXIO_WORKER_HOSTS"),
        c_readers=sorted(logged.c_readers),
        memory_bytes=psutil.virtual_memory().available,
    )


@dataclass(kw_only=True)
class _Logged:
    """Rows of all processes; files in the order of their first row."""

    files: dict[str, _Read] = field(default_factory=dict)
    c_readers: set[str] = field(default_factory=set)
    available: set[str] = field(default_factory=set)
    remote: list[list[str]] = field(default_factory=list)  # protocol, path (and line)
    tables: list[list[str]] = field(default_factory=list)  # function, seconds, path (and line)


def _logged(channel: Path) -> _Logged:
    logged = _Logged()
    for log in sorted(channel.glob("files-*.log")):
        with log.open("rb") as file:
            for row in file:
                letter, tab, text = os.fsdecode(row.rstrip(b"\n")).partition("\t")
                if tab:
                    _sort(logged, letter, text)
    return logged


def _sort(logged: _Logged, letter: str, text: str) -> None:
    if letter == file_reads.C_READER:
        logged.c_readers.add(text)
    elif letter == library_reads.AVAILABLE:
        logged.available.add(text)
    elif letter == file_reads.PAGES:
        share, _, path = text.split(" ", 2)
        logged.files.setdefault(path, _Read()).note_cached(float(share))
    elif letter in (library_reads.REMOTE, library_reads.TABLE):
        phase, *row = text.split(" ", 2 if letter == library_reads.REMOTE else 3)
        rows = logged.remote if letter == library_reads.REMOTE else logged.tables
        if phase != file_reads.SETUP:
            rows.append(row)
    else:
        logged.files.setdefault(text, _Read()).phases[letter] += 1


def _remote(rows: list[list[str]]) -> list[RemoteReads]:
    by_protocol: dict[str, list[str]] = defaultdict(list)
    for protocol, path in rows:
        by_protocol[protocol].append(path)
    return [
        RemoteReads(
            protocol=name,
            files=len({_path(row) for row in paths}),
            opens=len(paths),
            example=_path(paths[0]),
            location=_most_often(paths),
        )
        for name, paths in by_protocol.items()
    ]


def _path(row: str) -> str:
    return row.partition("\0")[0]


def _most_often(rows: list[str]) -> Location | None:
    """Return the user's line that most of the rows name behind their path."""
    lines = Counter(row.partition("\0")[2] for row in rows)
    lines.pop("", None)
    if not lines:
        return None
    line, _, file = lines.most_common(1)[0][0].partition(" ")
    return Location(file=file, line=int(line))


def _tables(rows: list[list[str]]) -> list[TableReads]:
    by_function: dict[str, list[list[str]]] = defaultdict(list)
    for function, *row in rows:
        by_function[function].append(row)
    return [
        TableReads(
            function=name,
            calls=len(calls),
            files=len({_path(row) for _, row in calls}),
            total_s=sum(float(seconds) for seconds, _ in calls),
            example=_path(calls[0][1]),
            location=_most_often([row for _, row in calls]),
        )
        for name, calls in by_function.items()
    ]


def _of_the_loop(reads: dict[str, _Read]) -> dict[str, _Read]:
    """Return files that the loader (or, without one, the training loop) opened or kept open."""
    by_loader = any(read.phases[phase] for read in reads.values() for phase in _IN_LOOP)
    wanted = [*_IN_LOOP, file_reads.HELD]
    if not by_loader:
        wanted.append(file_reads.TRAINING)
    return {
        path: read for path, read in reads.items() if any(read.phases[phase] for phase in wanted)
    }


def _stat_all(reads: dict[str, _Read]) -> None:
    """Look up sizes; leave out what is no regular file outside (a pipe, the launch's own).

    On slow storage this takes long too: files that it has no time for get the mean size.
    """
    until = time.monotonic() + _STAT_S
    paths = list(reads)
    known: list[int] = []
    random.Random(0).shuffle(paths)
    for number, path in enumerate(paths):
        if time.monotonic() > until:
            for left in paths[number:]:
                reads[left].size = sum(known) // max(len(known), 1)
            return
        try:
            status = Path(path).stat()
        except OSError:
            del reads[path]
            continue
        if stat.S_ISREG(status.st_mode):
            reads[path].size = status.st_size
            known.append(status.st_size)
        else:
            del reads[path]


def _opens(read: _Read) -> int:
    return sum(read.phases[p] for p in (*_IN_LOOP, file_reads.TRAINING))


def _weight(reads: dict[str, _Read]) -> int:
    return sum(_opens(read) + read.phases[file_reads.HELD] for read in reads.values())


def _mount_reads(mount: Mount, reads: dict[str, _Read], *, measured: bool) -> MountReads:
    kind, disk = kind_of(mount)
    speed = None
    if measured and kind != "memory":
        sample = sorted(reads)
        random.Random(0).shuffle(sample)
        speed = measure(sample[:_MEASURED_FILES], _MEASURE_S)
    held = [read for read in reads.values() if read.phases[file_reads.HELD]]
    sizes = sum(read.size for read in reads.values())
    looked_at = [read for read in reads.values() if read.cached is not None]
    folders = Counter(str(Path(path).parent) for path in reads)
    endings = Counter(Path(path).suffix.lower() for path in reads)
    return MountReads(
        path=mount.path,
        file_system=mount.kind,
        source=mount.source,
        device=disk,
        kind=kind,
        files=len(reads),
        file_bytes=sizes,
        opens=sum(map(_opens, reads.values())),
        held=len(held),
        opened_in_c=sum(set(read.phases) == {file_reads.HELD} for read in held),
        looked_at=len(looked_at),
        cached_at_first=_cached(looked_at),
        folders=[name for name, _ in folders.most_common(_NAMED)],
        endings=[name for name, _ in endings.most_common(_NAMED)],
        **(_speeds(speed, sizes / len(reads)) if speed else {}),
    )


def _cached(looked_at: Sequence[_Read]) -> float | None:
    """Return the share of these files' bytes in the page cache before they were read."""
    size = sum(read.size for read in looked_at)
    return sum(read.size * (read.cached or 0.0) for read in looked_at) / size if size else None


def _speeds(speed: ReadSpeed, mean_bytes: float) -> dict[str, float | None]:
    return {
        "cold_bytes_per_s": speed.cold.bytes_per_s(),
        "warm_bytes_per_s": speed.warm.bytes_per_s(),
        "cold_file_s": speed.cold.file_s(mean_bytes),
        "warm_file_s": speed.warm.file_s(mean_bytes),
        "latency_s": speed.cold.latency_s(),
        "cached_share": speed.cached_share,
    }


def _places(run_folder: Path, mounts: Sequence[Mount]) -> list[StagingPlace]:
    """Return memory and the run folder's disk, with their room."""
    places = []
    available = psutil.virtual_memory().available
    if _SHARED_MEMORY.is_dir():
        room = min(shutil.disk_usage(_SHARED_MEMORY).free, available)
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
        speed = measure([str(tried)], _MEASURE_S).cold.bytes_per_s()
    tried.unlink(missing_ok=True)
    free = shutil.disk_usage(run_folder).free
    kind = kind_of(mount)[0]
    places.append(StagingPlace(place="disk", kind=kind, free_bytes=free, cold_bytes_per_s=speed))
    return places
