"""Trace files, one per rank, -> their figures and the machine that they name, in order of rank."""

import multiprocessing
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.trace.clocks import Collectives, collectives
from torchdoctor.trace.files import trace_paths
from torchdoctor.trace.program import dictionary, gpus, text, whole_number
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise
from torchdoctor.trace.timeline import Timeline, build_timeline
from torchdoctor.words import Environment, TraceStatistics
from torchdoctor.words.errors import NoTrace, UsageError

STDIN = "-"
_IN_PARALLEL_BYTES = 4 << 20  # less is read before another process has started
_MOST_READERS = 8  # of 60 MB each for traces of 50 MB: 600 MB with the process that asks them
_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d+)", re.IGNORECASE)


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
    timeline: Timeline | None = None  # where it was asked for


@dataclass(frozen=True)
class Ranks:
    """The traces that were read, those that name a rank in its order, and what was not read."""

    traces: list[RankTrace]
    doubts: list[str]


def read_ranks(sources: Sequence[str], timelines: bool = False) -> Ranks:
    """Read traces, several at once where there are cores.

    What is no trace is passed over with a doubt, unless nothing is left. Timelines are kept to draw
    them. Raise UsageError if a source does not exist or is given twice, or none is a trace.
    """
    if not sources:
        raise UsageError("Name at least one trace: a .json, a .json.gz, a folder of them, or -.")
    if list(sources).count(STDIN) > 1:
        raise UsageError("The standard input (-) can be read once only.")
    if STDIN in sources and sys.stdin is None:
        raise UsageError("The standard input is closed: pipe a trace into it, or name a file.")
    paths = _paths([source for source in sources if source != STDIN])
    tried = [_read(STDIN, timelines)] if STDIN in sources else []
    tried += _in_parallel(paths, timelines)
    traces = [trace for trace in tried if isinstance(trace, RankTrace)]
    unread = [trace for trace in tried if isinstance(trace, NoTrace)]
    if not traces:
        if len(unread) == 1:
            raise unread[0]
        raise UsageError(f"None of {len(unread)} files is a trace that can be read: {unread[0]}")
    passed_over = [trace.what for trace in unread]
    if not all(trace.annotated for trace in traces):
        copies = [trace.statistics.path for trace in traces if trace.annotated]
        passed_over += [f"{path} is an annotated copy of a trace" for path in copies]
        traces = [trace for trace in traces if not trace.annotated]
    doubts = [f"{reason}; it was passed over." for reason in passed_over]
    return Ranks(sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0)), doubts)


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
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else 1
    workers = min(len(paths), cores, _MOST_READERS)
    if workers < 2 or size < _IN_PARALLEL_BYTES:
        return [_read(path, timelines) for path in paths]
    # Spawned, not forked: forking a process that has threads (numpy's) may hang the child.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return list(pool.map(_read, paths, [timelines] * len(paths)))


def _read(source: Path | str, timelines: bool) -> RankTrace | NoTrace:
    try:
        trace = read_trace(source if isinstance(source, Path) else sys.stdin.buffer)
    except NoTrace as error:
        return error
    timeline, metadata = build_timeline(trace), trace.metadata
    distributed = dictionary(metadata.get("distributedInfo"))
    rank = whole_number(distributed.get("rank"))
    if rank is None and (match := _RANK_IN_NAME.search(Path(trace.path).name)):
        rank = int(match[1])
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
        timeline=timeline if timelines else None,
    )
