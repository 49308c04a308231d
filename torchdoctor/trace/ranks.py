"""Trace files, one per rank, -> their figures and the machine that they name, in order of rank."""

import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np

from torchdoctor.schema import Environment, TraceStatistics
from torchdoctor.schema.errors import NoTrace, UsageError
from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.schema.intervals import union
from torchdoctor.trace.columns import Ints, Trace, named
from torchdoctor.trace.exchange import collective_calls
from torchdoctor.trace.files import trace_paths
from torchdoctor.trace.foreign import dictionary, text, whole_number
from torchdoctor.trace.loop_marks import is_step
from torchdoctor.trace.program import gpus
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise
from torchdoctor.trace.timeline import Timeline, build_timeline, host_collectives

# Broadcasts and point-to-point calls may end on one rank long before they do on another: they
# count where their ends turn out to lie together.
_TOGETHER = re.compile(r"all[-_]?(?:reduce|gather|to)|reduce[-_]?scatter", re.IGNORECASE)
_OFTEN = re.compile(r"sendrecv|send and receive", re.IGNORECASE)  # all-to-all is made of these
_FEWEST = 3
# How far ends may scatter around the usual difference: more, and these were not the same calls.
_SCATTER_NS, _SCATTER_SHARE = 20_000, 0.005  # of a step
_TOGETHER_SHARE = 0.1  # of a step, between the marks of one step on two ranks
# On the host a thread is woken when the data is there, on a busy machine milliseconds later.
_HOST_SCATTER_NS = 2_000_000
_HOST_SCATTER_SHARE = 0.02
_HOST_SCATTER_MOST = 0.1
STDIN = "-"
_IN_PARALLEL_BYTES = 4 << 20  # less is read before another process has started
_MOST_READERS = 8  # of 60 MB each for traces of 50 MB: 600 MB with the process that asks them
_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Collectives:
    """Those of one rank in order of time: profiler step, kind with kernel and group, and times."""

    step: Ints
    name: list[str]
    start: Ints
    end: Ints
    base_us: float  # of the times, on the clock of its machine
    on_device: bool = True
    marks: dict[int, int] = field(default_factory=dict)  # profiler step -> where it begins


@dataclass(frozen=True)
class Alignment:
    """One entry a rank, in the order given."""

    offset_s: list[float]  # how far its clock is ahead of the first rank's
    wait_s: list[float]  # per step, in collectives until the last rank came
    last_share: list[float]  # of the collectives, those that it came to last
    collectives: int
    exchange_s: float  # per step, in collectives after the last rank came
    scatter_s: float  # how far ends lie from the offset, the usual distance over all ranks
    on_device: bool = True


class Unaligned(Enum):
    """Why clocks could not be aligned."""

    TOO_FEW = "too few"  # collectives that all ranks ran alike, in steps that all recorded
    UNMATCHED = "unmatched"  # what looks like the same ones did not end together; steps begin so
    APART = "apart"  # nor do steps of one number begin together: perhaps several runs


def collectives(trace: Trace, timeline: Timeline) -> Collectives:
    """Return the collectives of the known steps; none where steps are unknown."""
    number = _step_numbers(trace, timeline)
    if trace.has_device:
        calls = collective_calls(trace, timeline.steps)
        table = trace.device.where(calls.row)
        of = [trace.names[group] if group >= 0 else "" for group in table["group"].tolist()]
        kinds = [f"{kind} {group} " for kind, group in zip(calls.kind, of, strict=True)]
    else:
        table = host_collectives(trace)
        table = table.where(np.argsort(table.start, kind="stable"))
        kinds = [""] * len(table)
    kernels = [trace.names[name].partition("(")[0] for name in table.name]
    index = timeline.steps.index(table.start)
    rows = np.flatnonzero(index >= 0) if len(number) else np.zeros(0, dtype=np.int64)
    index = index[rows]
    epoch_ns = whole_number(trace.metadata.get("baseTimeNanoseconds")) or 0
    return Collectives(
        step=number[index] if len(index) else index,
        name=[kinds[row] + kernels[row] for row in rows],
        start=table.start[rows],
        end=table.end[rows],
        base_us=trace.base_us + epoch_ns / 1000,
        on_device=trace.has_device,
        marks=dict(zip(number.tolist(), timeline.steps.host_start.tolist(), strict=False)),
    )


def _step_numbers(trace: Trace, timeline: Timeline) -> Ints:
    """Return the profiler's number of each step; empty where steps are unknown."""
    if not timeline.steps.known:
        return np.zeros(0, dtype=np.int64)
    numbers = {}
    for table in trace.ranges:
        marks = table.where(named(trace, table, is_step))
        for start, name in zip(marks.start.tolist(), marks.name.tolist(), strict=True):
            number = whole_number(trace.names[name].rpartition("#")[2])
            numbers[start] = -1 if number is None else number
    starts = timeline.steps.host_start.tolist()
    return np.array([numbers.get(start, -1) for start in starts], dtype=np.int64)


def align(ranks: Sequence[Collectives], step_s: float) -> Alignment | Unaligned:
    """Align the ranks' clocks; the scatter of the ends is judged against the length of a step.

    A collective that everybody needs everybody's data for ends on all ranks within microseconds:
    the usual difference of its ends is the clocks', that of its starts what each rank waited.
    """
    matched = _matched(ranks) if len(ranks) > 1 else []
    if len(matched) < _FEWEST:
        return Unaligned.TOO_FEW
    rows = np.array(matched).T  # ranks, collectives
    names = [ranks[0].name[row] for row in rows[0].tolist()]
    sure = np.array([_TOGETHER.search(name) is not None for name in names])
    anchors = sure
    if sure.sum() < _FEWEST:
        anchors = sure | np.array([_OFTEN.search(name) is not None for name in names])
    if anchors.sum() < _FEWEST:
        return Unaligned.TOO_FEW
    base_ns = np.array([[int(1000 * (rank.base_us - ranks[0].base_us))] for rank in ranks])
    start = np.array([rank.start[row] for rank, row in zip(ranks, rows, strict=True)]) + base_ns
    end = np.array([rank.end[row] for rank, row in zip(ranks, rows, strict=True)]) + base_ns
    apart = end - end[0]
    offset = np.median(apart[:, anchors], axis=1).astype(np.int64)
    off = np.abs(apart - offset[:, None])
    scatter = np.median(off[:, anchors], axis=1).max()
    on_device = all(rank.on_device for rank in ranks)
    step_ns = step_s * 1e9
    most = _HOST_SCATTER_NS + _HOST_SCATTER_SHARE * step_ns
    most = min(most, _HOST_SCATTER_MOST * step_ns)
    most = _SCATTER_NS + _SCATTER_SHARE * step_ns if on_device else most
    if scatter > most:
        unmatched = Unaligned.UNMATCHED if _begin_together(ranks, step_ns) else Unaligned.APART
        return unmatched if sure.sum() >= _FEWEST else Unaligned.TOO_FEW
    kept = sure | (off.max(axis=0) <= most)
    start, end, rows = start[:, kept], end[:, kept], rows[:, kept]
    arrived = start - offset[:, None]
    ended = end - offset[:, None]
    came = arrived.max(axis=0)
    # Collectives may overlap in time: a moment in several of them counts once.
    waits = [
        union(starts, np.minimum(came, ends)).total
        for starts, ends in zip(arrived, ended, strict=True)
    ]
    exchange = union(came, came + (end - start).min(axis=0)).total
    steps = len(np.unique(ranks[0].step[rows[0]]))
    last = np.bincount(arrived.argmax(axis=0), minlength=len(ranks))
    return Alignment(
        offset_s=(offset / 1e9).tolist(),
        wait_s=[wait / steps / 1e9 for wait in waits],
        last_share=(last / rows.shape[1]).tolist(),
        collectives=rows.shape[1],
        exchange_s=exchange / steps / 1e9,
        scatter_s=float(scatter) / 1e9,
        on_device=on_device,
    )


def _begin_together(ranks: Sequence[Collectives], step_ns: float) -> bool:
    """Return True if steps of one number begin together on all ranks, as they do in one run."""
    common = set.intersection(*(set(rank.marks) for rank in ranks)) - {-1}
    for number in common:
        begins = [rank.marks[number] + 1000 * (rank.base_us - ranks[0].base_us) for rank in ranks]
        if max(begins) - min(begins) > _TOGETHER_SHARE * step_ns:
            return False
    return bool(common)


def _matched(ranks: Sequence[Collectives]) -> list[tuple[int, ...]]:
    """Return the rows of the same collective on every rank: the n-th of a name in a step."""
    matched: list[tuple[int, ...]] = []
    by_name: list[dict[tuple[int, str], list[int]]] = []
    for rank in ranks:
        rows: dict[tuple[int, str], list[int]] = {}
        for row, key in enumerate(zip(rank.step.tolist(), rank.name, strict=True)):
            rows.setdefault(key, []).append(row)
        by_name.append(rows)
    for key in sorted(set.intersection(*map(set, by_name))):
        rank_rows = [rows[key] for rows in by_name]
        if key[0] >= 0 and len({len(rows) for rows in rank_rows}) == 1:
            matched += zip(*rank_rows, strict=True)
    return matched


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One trace: its figures, and what it says of where it was recorded."""

    statistics: TraceStatistics
    environment: Environment
    rank: int | None = None
    world_size: int | None = None
    start_us: float = 0.0  # where the timeline's times begin, as the trace counts
    collectives: Collectives
    annotated: bool = False  # a copy with tracks of torchdoctor's own
    cut_off: bool = False
    timeline: Timeline | None = None  # where it was asked for


Reader = Callable[[list[Path], bool], list[RankTrace | NoTrace]]  # as `read_rank`, of many


def read_ranks(
    sources: Sequence[str], timelines: bool = False, reader: Reader | None = None
) -> tuple[list[RankTrace], dict[str, Evidence]]:
    """Return the traces in order of rank, and by its name why each file was left out.

    Left out is what cannot be read or would spoil the comparison of the others. Several are read at
    once where there are cores, or by `reader`; `timelines` are kept to draw them. Raise UsageError
    if a source does not exist or is given twice, or none is a trace.
    """
    if not sources:
        raise UsageError("Name at least one trace: a .json, a .json.gz, a folder of them, or -.")
    if list(sources).count(STDIN) > 1:
        raise UsageError("The standard input (-) can be read once only.")
    if STDIN in sources and sys.stdin is None:
        raise UsageError("The standard input is closed: pipe a trace into it, or name a file.")
    paths = _paths([source for source in sources if source != STDIN])
    tried = {"standard input": read_rank(STDIN, timelines)} if STDIN in sources else {}
    tried |= zip(map(str, paths), (reader or _in_parallel)(paths, timelines), strict=True)
    traces = [trace for trace in tried.values() if isinstance(trace, RankTrace)]
    unread = {name: error for name, error in tried.items() if isinstance(error, NoTrace)}
    if not traces:
        first = next(iter(unread.values()))
        many = f"None of {len(unread)} files is a trace that can be read: {first}"
        raise first if len(unread) == 1 else UsageError(many)
    reasons = {name: fact("file-left-out", reason=error.what) for name, error in unread.items()}
    best = max(
        traces, key=lambda trace: (not trace.annotated, not trace.cut_off, trace.statistics.steps)
    )
    flaws: dict[str, Callable[[RankTrace], bool]] = {
        "file-annotated": lambda trace: trace.annotated,
        "file-cut-off": lambda trace: trace.cut_off and trace is not best,
        "file-without-rank": lambda trace: trace.rank is None,
    }
    for flaw, has_flaw in flaws.items():
        flawed = [trace.statistics.path for trace in traces if has_flaw(trace)]
        if len(flawed) < len(traces):
            reasons |= {path: fact(flaw, path=path) for path in flawed}
            traces = [trace for trace in traces if trace.statistics.path not in flawed]
    return sorted(traces, key=lambda trace: trace.rank or 0), reasons


def _paths(sources: Sequence[str]) -> list[Path]:
    """Return the files of all sources; UsageError if one is missing or is meant twice."""
    by_place: dict[str, Path] = {}
    for source in sources:
        if not source:
            raise UsageError("The name of a trace is empty: name a file or a folder.")
        for path in trace_paths(Path(source)):
            first = by_place.setdefault(os.path.realpath(path), path)
            if first is not path:
                again = "" if path == first else f", also as {path}"
                raise UsageError(f"{first} is named twice{again}: name each trace once.")
    return list(by_place.values())


def _in_parallel(paths: list[Path], timelines: bool) -> list[RankTrace | NoTrace]:
    size = sum(path.stat().st_size for path in paths if path.is_file())
    cores = len(getattr(os, "sched_getaffinity", lambda _: [0])(0))
    workers = min(len(paths), cores, _MOST_READERS)
    if workers < 2 or size < _IN_PARALLEL_BYTES:
        return [read_rank(path, timelines) for path in paths]
    # Spawned, not forked: forking a process that has threads (numpy's) may hang the child.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(read_rank, paths, [timelines] * len(paths)))


def read_rank(source: Path | str, timelines: bool) -> RankTrace | NoTrace:
    """Return the trace in a file, or why there is none; `timelines`: keep its timeline."""
    try:
        trace = read_trace(source if isinstance(source, Path) else sys.stdin.buffer)
    except NoTrace as error:
        return error
    timeline = build_timeline(trace)
    metadata = trace.metadata
    distributed = dictionary(metadata.get("distributedInfo"))
    rank = whole_number(distributed.get("rank"))
    if rank is None and (match := _RANK_IN_NAME.search(Path(trace.path).name)):
        rank = whole_number(match[1])
    return RankTrace(
        statistics=summarise(trace, timeline),
        environment=Environment(  # of the trace: nothing of the machine that reads it
            torch=text(metadata.get("torch_version")),
            cuda=text(metadata.get("cuda_version")),
            gpus=gpus(trace),
        ),
        rank=rank,
        world_size=whole_number(distributed.get("world_size")),
        start_us=trace.base_us,
        collectives=collectives(trace, timeline),
        annotated=trace.annotated,
        cut_off=trace.cut_off,
        timeline=timeline if timelines else None,
    )
