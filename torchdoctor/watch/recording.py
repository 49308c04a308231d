"""Reads the folder of a watched run: while it grows, after it ended, or after it was killed."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.probe.measure.facts import write_json
from torchdoctor.schema import Evidence, Location, fact
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import bytes_of, open_regular
from torchdoctor.schema.units import unit_of
from torchdoctor.watch.inside import layout
from torchdoctor.watch.inside.overlapping_calls import BINS_PER_OCTAVE

FOLDER = "watch"  # in the run folder
_TAIL = 1024  # rows that a power cut may have left empty
_LARGEST_HEAD = 1 << 20  # bytes
_KINDS = frozenset(("<u2", "<u4", "<i8", "<f4", "<f8"))  # of a column
_LATEST_NS = 1 << 62
_LONGEST_S = 1e7
_LARGEST = 1e30
PHASES = layout.PHASES
Rows = NDArray[Any]  # structured: a field for each column of `layout`
Column = NDArray[np.float64]
_Read = TypeVar("_Read")
_UNREADABLE = msgspec.MsgspecError, UnicodeError, RecursionError


class _Head(msgspec.Struct):
    """What a table begins with."""

    columns: list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Start:
    """The command as it was started on one host, and its end as seen from beside it."""

    host: str
    pid: int  # of the command's first process
    command: list[str]
    cwd: str
    python: str | None = None
    script: str | None = None
    torchdoctor: str = ""
    start_ns: int = 0  # of the host's monotonic clock
    start_unix_ns: int = 0
    end_unix_ns: int | None = None  # None: it runs, or torchdoctor was killed beside it
    exited: bool | None = None  # False: a signal, a crash or an uncaught exception ended it


@dataclass(frozen=True, kw_only=True)
class Overlapping:
    """Calls that several threads made, each by its own time; `inside.overlapping_calls` counts."""

    most_at_once: int
    calls: int
    total_s: float
    longest_s: float
    bins: list[tuple[int, int]]  # (number of the bin, calls), ascending

    def quantile_s(self, share: float) -> float:
        """Return a quantile of the time of a call, within 5 %."""
        counted = np.cumsum([calls for _, calls in self.bins])
        at = int(np.searchsorted(counted, share * counted[-1]))
        number = self.bins[min(at, len(self.bins) - 1)][0]
        middle_s = (2 ** ((number + 0.5) / BINS_PER_OCTAVE) - 1) * 1e-6
        return min(float(middle_s), self.longest_s)


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process that trains, as it told itself."""

    host: str
    pid: int
    start_ns: int = 0  # when torch had been imported, of the host's monotonic clock
    start_unix_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None  # of torch.distributed
    argv: list[str] = field(default_factory=list)
    torch: str = ""
    device: str = "cpu"
    kind: str = "training"  # or "inference"
    # What a step is: of `steps.evidence.KINDS`; None: not decided yet.
    step_kind: str | None = None
    step_name: str = ""  # of the optimizer, model or function that tells a step
    location: Location | None = None  # of the loader or optimizer
    batch_size: int | None = None
    num_workers: int | None = None
    overlapping: Overlapping | None = None  # None: one thread makes all calls
    probe_failed: str | None = None  # why the probe removed itself
    exited: bool = False  # by itself: its exit handlers ran, and no exception was left

    @property
    def infers(self) -> bool:
        """Return whether its models are called and nothing is learned."""
        return self.kind == "inference"

    @property
    def step(self) -> list[Evidence]:
        """Return what a step is; nothing where that is not decided."""
        if self.step_kind is None:
            return []
        name = self.step_name or None
        kind = fact(f"step-{self.step_kind}", name=name, location=self.location)
        return [kind, fact("no-gradient")] if self.infers else [kind]

    @property
    def unit(self) -> str:
        """Return what a step of it is called."""
        return unit_of(self.kind, self.step_kind)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened once.

    kind: "steps" (found, or told by something else from here on), "evaluation" and "checkpoint"
    (`seconds`), "loss" (not finite), "profile" (a window; `text`: its file), "failed" (our hooks).
    """

    t_ns: int  # of the host's monotonic clock
    step: int  # steps that had ended
    kind: str
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """The step log of one process; arrays of shape (n,), a row for one or more steps each."""

    rows: Rows  # `layout.STEP_COLUMNS`

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def step(self) -> NDArray[np.int64]:
        """Return the number of each row's last step; the first step is 1."""
        return self.rows["step"].astype(np.int64)

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Return how many steps each row covers."""
        return self.rows["steps"].astype(np.int64)

    @cached_property
    def start_ns(self) -> NDArray[np.int64]:
        """Return when each row's first step began, on the host's monotonic clock."""
        return self.rows["start_ns"].astype(np.int64)

    @cached_property
    def total_s(self) -> Column:
        """Return the seconds of each row, of all its steps."""
        return np.asarray(self.spent_s.sum(axis=1))

    @cached_property
    def step_s(self) -> Column:
        """Return the mean seconds of a step in each row."""
        return self.total_s / self.steps

    @cached_property
    def phases_s(self) -> Column:
        """Return the mean seconds of each phase of a step; shape (n, len(PHASES))."""
        return self.spent_s / self.steps[:, None]

    @cached_property
    def spent_s(self) -> Column:
        """Return the seconds of each phase in each row, of all its steps."""
        return np.stack([self.rows[name] for name in PHASES], axis=1).astype(np.float64)

    @cached_property
    def samples(self) -> Column:
        """Return the mean samples of a step; NaN: unknown."""
        samples = self.rows["samples"] / self.steps
        return np.where(samples > 0, samples, np.nan)

    @cached_property
    def elements(self) -> Column:
        """Return the mean elements of the model's largest input; NaN: unknown."""
        elements = self.rows["elements"] / self.steps
        return np.where(elements > 0, elements, np.nan)

    @cached_property
    def last_start_ns(self) -> NDArray[np.int64]:
        """Return when each row's last step began; exact where a row covers one step."""
        before = np.where(self.steps > 1, self.total_s - self.step_s, 0.0)
        return self.start_ns + (before * 1e9).astype(np.int64)

    @cached_property
    def entry_ns(self) -> Column:
        """Return when the rank was ready for its last step's exchange; NaN: there was none."""
        return self._moment("entry")

    @cached_property
    def exchanged_ns(self) -> Column:
        """Return when that exchange had ended; NaN: there was none."""
        return self._moment("exchanged")

    def _moment(self, name: str) -> Column:
        codes = self.rows[name].astype(np.float64)
        return np.where(codes > 0, self.last_start_ns + layout.decoded(codes) * 1e9, np.nan)

    def has(self, flag: int) -> NDArray[np.bool_]:
        """Return whether each row has a flag of `layout`."""
        return np.asarray(self.rows["flags"] & flag > 0)

    def lost(self) -> tuple[int, float]:
        """Return how many steps are missing between rows, and how many seconds they took."""
        missing = self.step[1:] - self.steps[1:] - self.step[:-1]
        apart_s = np.diff(self.start_ns) / 1e9 - self.total_s[:-1]
        gaps = missing > 0
        return int(missing[gaps].sum()), float(np.maximum(apart_s[gaps], 0.0).sum())

    def each(self) -> "Steps":
        """Return the first rows, up to one that several steps share: what each step took."""
        shared = np.flatnonzero(self.steps > 1)
        return self if not len(shared) else Steps(rows=self.rows[: shared[0]])

    def median_s(self) -> float:
        """Return the median of a step, where a row counts for each step that it covers."""
        if not (self.steps > 1).any():
            return float(np.median(self.step_s))
        order = np.argsort(self.step_s, kind="stable")
        counted = np.cumsum(self.steps[order])
        return float(self.step_s[order[np.searchsorted(counted, counted[-1] / 2)]])

    @cached_property
    def plain(self) -> NDArray[np.bool_]:
        """Return whether each row's steps can be compared: hooks on, no profiler window."""
        return ~self.has(layout.PROBE_OFF | layout.PROFILED)


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessLog:
    """All that one training process wrote."""

    stem: str
    process: Process
    steps: Steps
    sensors: Rows  # `layout.PROCESS_COLUMNS`; the last row is its last sign of life
    events: list[Event]


@dataclass(frozen=True, kw_only=True, eq=False)
class WatchedRun:
    """A watched run as far as it was written."""

    folder: Path  # with the files of `layout`
    starts: list[Start]  # one for each host
    processes: list[ProcessLog]  # by rank, then by start
    machines: dict[str, Rows]  # by host: `layout.MACHINE_COLUMNS`


def write_start(folder: Path, start: Start) -> None:
    """Write the command of one host into a `watch` folder, whole or not at all; raise OSError."""
    write_json(str(folder / f"run-{start.host}-{start.pid}.json"), asdict(start))


def read_run(folder: Path) -> WatchedRun:
    """Return a watched run; `folder`: the run's or its `watch` folder. Files that grow are fine.

    Tables are mapped, not loaded. Raise FileNotFoundError if nothing was watched there.
    """
    inside = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    starts = [read for path in sorted(inside.glob("run-*.json")) if (read := _json(path, Start))]
    # Of host, process and start; the status.json of another run's folder names those as well.
    described = [path for path in inside.glob("*-*.json") if not path.name.startswith("run-")]
    stems = sorted(path.stem for path in described)
    logs = [_sound_log(log) for stem in stems if (log := read_process(inside, stem)) is not None]
    if not starts and not logs:
        raise FileNotFoundError(f"no watched run in {folder}")
    last = 1 << 30
    logs.sort(
        key=lambda log: (
            last if log.process.rank is None else log.process.rank,
            log.process.start_unix_ns,
        )
    )
    machines: dict[str, list[Rows]] = {}
    for path in sorted(inside.glob("machine-*.sensors")):
        host = path.stem.removeprefix("machine-").rpartition("-")[0]
        machines.setdefault(host, []).append(sound(read_table(path, layout.MACHINE_COLUMNS)))
    return WatchedRun(
        folder=inside,
        starts=starts,
        processes=logs,
        machines={
            host: tables[0] if len(tables) == 1 else np.concatenate(tables)
            for host, tables in machines.items()
        },
    )


def opened(folder: Path) -> WatchedRun:
    """Return the watched run of a folder; raise UsageError if there is none."""
    try:
        return read_run(folder)
    except FileNotFoundError as error:
        todo = "start one with torchdoctor watch train.py, or name its folder"
        raise UsageError(f"There is no watched run in {folder}: {todo}.") from error


def _sound_log(log: ProcessLog) -> ProcessLog:
    steps = Steps(rows=sound(log.steps.rows))
    return replace(log, steps=steps, sensors=sound(log.sensors))


def read_process(folder: Path, stem: str, since: int = 0) -> ProcessLog | None:
    """Return the log of one process, its steps from row `since` on; None: it is not there yet."""
    process = _json(folder / f"{stem}.json", Process)
    if process is None:
        return None
    return ProcessLog(
        stem=stem,
        process=process,
        steps=Steps(rows=read_table(folder / f"{stem}.steps", layout.STEP_COLUMNS, since)),
        sensors=read_table(folder / f"{stem}.sensors", layout.PROCESS_COLUMNS),
        events=[*read_lines(folder / f"{stem}.events", Event)],
    )


def read_table(path: Path, columns: tuple[tuple[str, str], ...], since: int = 0) -> Rows:
    """Return the rows of a table from row `since` on; empty where there is no such file.

    A last row that is torn is left out, as are rows of zeros, which a power cut leaves. A column
    that the file does not have is NaN, or 0 where it counts.
    """
    wanted = np.dtype(list(columns))
    try:
        with open_regular(path) as file:
            start = file.read(12)
            size = int.from_bytes(start[8:], "little")
            text = file.read(min(size, _LARGEST_HEAD))
            length = file.seek(0, 2)
        if start[:8] != layout.MAGIC or len(text) < size:
            return np.empty(0, wanted)
        described = msgspec.json.decode(text, type=_Head)
        there = np.dtype(described.columns)
    except (OSError, ValueError, TypeError, RecursionError):  # of msgspec too
        return np.empty(0, wanted)
    if not described.columns or any(kind not in _KINDS for _, kind in described.columns):
        return np.empty(0, wanted)
    first = -(-(12 + size) // 64) * 64 + since * there.itemsize
    count = max(length - first, 0) // there.itemsize
    if not count:
        return np.empty(0, wanted)
    rows: Rows = np.memmap(path, dtype=there, mode="r", offset=first, shape=(count,))
    clock = "start_ns" if "start_ns" in (there.names or ()) else "t_ns"
    end = max(count - _TAIL, 0)  # a power cut loses the end alone, and a table may be long
    whole = rows[end:][clock] != 0
    rows = rows if whole.all() else np.concatenate([rows[:end], rows[end:][whole]])
    if there == wanted:
        return rows
    result = np.zeros(len(rows), wanted)
    for name, kind in columns:
        if name in (there.names or ()):
            with np.errstate(invalid="ignore"):  # see `sound`
                result[name] = rows[name]
        elif kind.startswith("<f"):
            result[name] = np.nan
    return result


def sound(rows: Rows) -> Rows:
    """Return the rows without those that no writer writes: of a disk that failed, or a bad copy."""
    good = np.ones(len(rows), dtype=bool)
    for name in rows.dtype.names or ():
        column = rows[name]
        if name.endswith("_ns"):
            good &= (column > 0) & (column < _LATEST_NS)
        elif name in PHASES:
            good &= (column >= 0) & (column <= _LONGEST_S)
        elif name == "steps":
            good &= column > 0
        elif column.dtype.kind == "f":
            good &= ~(np.abs(column) > _LARGEST)  # NaN: not measured
    rows = rows if good.all() else rows[good]
    clock = rows["start_ns" if "start_ns" in (rows.dtype.names or ()) else "t_ns"]
    if (clock[1:] >= clock[:-1]).all():
        return rows
    # A few are out of order: those that come too late, or those that come too early.
    late = clock >= np.maximum.accumulate(clock)
    early = clock <= np.minimum.accumulate(clock[::-1])[::-1]
    return rows[late if late.sum() >= early.sum() else early]


def read_lines(path: Path, kind: type[_Read]) -> Iterator[_Read]:
    """Yield the objects of a file, one a line; what is torn or not there is left out."""
    with contextlib.suppress(OSError):
        for line in bytes_of(path).split(b"\n")[:-1]:
            with contextlib.suppress(*_UNREADABLE):
                yield msgspec.json.decode(line, type=kind)


def _json(path: Path, kind: type[_Read]) -> _Read | None:
    try:
        return msgspec.json.decode(bytes_of(path), type=kind)
    except (OSError, *_UNREADABLE):
        return None
