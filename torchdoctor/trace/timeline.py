"""Columns -> steps and the exposed time of each branch in them, which a copy of a trace can show.

A moment belongs to the first branch in the order of `BRANCHES` that covers it, else to "other": a
wait hidden under a kernel counts as kernel. docs/decisions/trace-shares.md gives the reasons.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from torchdoctor.schema import Finding, Recording, Shares, TraceStatistics
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.schema.figures import SHARE_LABELS
from torchdoctor.schema.intervals import EMPTY, Intervals, intersect, join, subtract
from torchdoctor.schema.record_files import replacing
from torchdoctor.trace.columns import Ints, Mask, Table, Trace, named, once
from torchdoctor.trace.files import TraceFile
from torchdoctor.trace.kinds import KERNEL, MEMCPY, MEMSET, OUR_CATEGORY, is_communication
from torchdoctor.trace.loop_marks import is_loader, is_optimizer, is_step, of_fetching_thread
from torchdoctor.trace.nesting import launch_rows, operator_nesting

# The order in which branches claim time. Collective kernels come right after the others, so that
# gpu + communication is the time under any kernel, whatever the collective's operator is called.
BRANCHES = ("gpu", "communication", "memcpy", "memset", "runtime", "data_loader", "cpu")
_FEWEST_MARKS = 10  # of optimizers: of fewer, the first ones are the program's start
_OVERLAP = 0.1  # of a step mark's length: so far the next one may begin in it
_SHORT_LAST_STEP = 0.8  # of the device events of the step before it
HOST_COMMUNICATION = ("gloo:", "mpi:", "ucc:", "xccl:")
ASKS = re.compile(r"(?:cuda|hip)Malloc(?!.*(?:Host|Async))|cuMemCreate")
_WAITS = re.compile(r"Synchronize|Memcpy")
_FREES = re.compile(r"Free|cuMem(?!Create)")  # may take long in a warm program too
_CONTEXT_NS = 1_000_000  # a warm cudaFree takes less, unless it waits for kernels
_IDLE = 0.9  # of a call: what waits for the device sees it work
_WAIT_NS = 1_000_000
_HELD = ("blocking_copy_s", "blocking_copy_exposed_s", "d2h_wait_s", "pageable_wait_s", "sync_s")
_PROCESS = 2_000_000_000  # no process id of a system
_TRACKS = {1: "steps", 2: "what the step is in (exposed time)", 3: "findings"}
_SHORTEST_NS = 1000  # shorter ones nobody sees, and there may be millions
_STEPS = 1
_EXPOSED = 2
_FINDINGS = 3


@dataclass(frozen=True)
class Steps:
    """Step spans in order, in nanoseconds. `host_*` is the annotation's own span."""

    start: Ints
    end: Ints
    host_start: Ints
    host_end: Ints
    known: bool  # False: no annotation; one span stands for the whole trace
    doubts: list[Evidence] = field(default_factory=list)
    start_up: int = 0  # nanoseconds of start-up before the first one, which are left out

    def __len__(self) -> int:
        return len(self.start)

    @property
    def host(self) -> Steps:
        """Return the annotations' own spans as steps: what the host did in each."""
        return Steps(self.host_start, self.host_end, self.host_start, self.host_end, self.known)

    @property
    def total(self) -> int:
        """Return the length of all steps together."""
        return int((self.end - self.start).sum())

    def index(self, times: Ints) -> Ints:
        """Return the step that each moment lies in, or -1."""
        index = np.searchsorted(self.start, times, side="right") - 1
        inside = (index >= 0) & (times < self.end[np.maximum(index, 0)])
        return np.where(inside, index, -1)

    def inside(self, table: Table) -> Ints:
        """Return how much of each row lies in the steps: a call may begin before the first one."""
        return Intervals(self.start, self.end).covered(table.start, table.end)


@dataclass(frozen=True)
class Timeline:
    """Merged intervals of every branch, and what of each is exposed in every step."""

    steps: Steps
    branches: dict[str, Intervals]
    exposed: dict[str, Ints]  # branch or "other" -> nanoseconds per step
    collectives: Intervals  # all communication, also where something else hides it

    @functools.cached_property
    def exposed_intervals(self) -> dict[str, Intervals]:
        """Return each branch's exposed time (and "other"): disjoint, and together the steps."""
        steps = Intervals(self.steps.start, self.steps.end)
        exposed = {}
        covered = EMPTY
        for branch in BRANCHES:
            intervals = self.branches[branch]
            exposed[branch] = intersect(subtract(intervals, covered), steps)
            covered = join(covered, intervals)
        exposed["other"] = subtract(steps, covered)
        return exposed

    def share(self, branch: str) -> float | None:
        """Return the exposed share of the average step, 0 to 1; None: the steps have no length."""
        total = self.steps.total
        return float(self.exposed[branch].sum()) / total if total else None


def find_steps(trace: Trace) -> Steps:
    """Return the steps by the profiler's marks or optimizers', with their device events."""
    marks = [table.where(named(trace, table, is_step)) for table in trace.ranges]
    start = np.concatenate([mark.start for mark in marks])
    end = np.concatenate([mark.end for mark in marks])
    name = np.concatenate([mark.name for mark in marks])
    order = np.lexsort((-end, start))
    rows: list[int] = []
    ended: dict[int, int] = {}  # by name: a step that two threads mark counts once
    for row in order[end[order] > start[order]].tolist():
        if start[row] >= ended.get(int(name[row]), start[row]):
            rows.append(row)
            ended[int(name[row])] = int(end[row])
    if not rows:
        return _by_optimizer(trace) or _whole_trace(trace)
    kept: list[int] = []
    free = -np.inf
    for row in sorted(rows, key=lambda row: end[row]):  # so that none around several others is kept
        if start[row] >= free:
            kept.append(row)
            free = end[row] - _OVERLAP * (end[row] - start[row])
    steps = _with_device_work(trace, start[kept], end[kept])
    if len(kept) == len(rows):
        return steps
    doubt = fact("marks-overlap", left_out=len(rows) - len(kept), marks=len(rows))
    return replace(steps, doubts=[doubt, *steps.doubts])


def _by_optimizer(trace: Trace) -> Steps | None:
    """Return steps from the end of one mark of an optimizer to the next; None: too few marks."""
    marks = [table.where(named(trace, table, is_optimizer)) for table in trace.ranges]
    start = np.sort(np.concatenate([mark.start for mark in marks]))
    end = np.sort(np.concatenate([mark.end for mark in marks]))
    if len(start) < _FEWEST_MARKS:
        return None
    gap = start[1:] - end[:-1]
    border = end[np.append(gap >= _OVERLAP * gap.mean(), True)]  # several optimizers in a row: one
    if len(border) < _FEWEST_MARKS:
        return None
    doubt = fact("steps-by-optimizer", marks=len(border), steps=len(border) - 1)
    steps = _with_device_work(trace, border[:-1], border[1:])
    whole = _whole_trace(trace)
    doubts = [doubt, *whole.doubts[1:], *steps.doubts]
    return replace(steps, doubts=doubts, start_up=whole.start_up)


def _whole_trace(trace: Trace) -> Steps:
    host = [table for table in (trace.operators, trace.annotations, trace.runtime) if len(table)]
    tables = host or [table for table in (trace.device, trace.spans) if len(table)]
    begin = min((int(table.start.min()) for table in tables), default=0)
    last = max((int(t.end.max()) for t in (*tables, trace.device) if len(t)), default=0)
    doubt = fact("steps-unknown")
    kept, doubts = start_up(trace, begin, last)
    start = np.array([kept])
    end = np.array([last])
    return Steps(start, end, start, end, False, [doubt, *doubts], start_up=kept - begin)


def _with_device_work(trace: Trace, host_start: Ints, host_end: Ints) -> Steps:
    row = launch_rows(trace)
    called, returned = (
        np.append(column, -1)[row] for column in (trace.runtime.start, trace.runtime.end)
    )
    step = np.searchsorted(host_start, called, side="right") - 1
    inside = (row >= 0) & (step >= 0) & (returned <= host_end[np.maximum(step, 0)])
    step_of = np.where(inside, step, -1)  # whose host span holds the launch of each device event
    launched = step_of >= 0
    if not launched.any():
        return Steps(host_start, host_end, host_start, host_end, known=True)
    count = np.bincount(step_of[launched], minlength=len(host_start))
    last = np.full(len(host_start), np.iinfo(np.int64).min)
    np.maximum.at(last, step_of[launched], trace.device.end[launched])
    # A step ends with its last device event, and the next begins there: a running maximum. Work
    # launched before the first step and done before its first device event delays its start.
    begin = host_start[0]
    in_first = trace.device.start[step_of == 0]
    if len(in_first):
        earlier = trace.device.end[~launched & (trace.device.end < in_first.min())]
        begin = max(begin, earlier.max()) if len(earlier) else begin
    end = np.maximum.accumulate(np.maximum(np.maximum(host_end, last), begin))
    start = np.maximum(host_start, np.concatenate(([begin], end[:-1])))
    keep = int(np.flatnonzero(count)[-1]) + 1
    if keep > 1 and count[keep - 1] < _SHORT_LAST_STEP * count[keep - 2]:
        keep -= 1
    doubts = []
    if keep < len(count):
        left = len(count) - keep
        doubts.append(fact("last-steps-left-out", left_out=left, steps=len(count)))
    return Steps(start[:keep], end[:keep], host_start[:keep], host_end[:keep], True, doubts)


def build_timeline(trace: Trace) -> Timeline:
    """Return the steps of a trace and the exposed time of every branch in them."""
    steps = find_steps(trace)
    device = trace.device
    kind = device["kind"]
    communication = (kind == KERNEL) & named(trace, device, is_communication)
    loader = []
    work = []
    for table in trace.ranges:
        loading = named(trace, table, is_loader)
        elsewhere = of_fetching_thread(trace, table)
        loader.append(table.spans(loading & ~elsewhere))
        work.append(table.spans(~loading & ~elsewhere & ~named(trace, table, is_step)))
    branches = {
        "gpu": device.spans((kind == KERNEL) & ~communication),
        "memcpy": device.spans(kind == MEMCPY),
        "memset": device.spans(kind == MEMSET),
        "communication": device.spans(communication),
        "runtime": trace.runtime.spans(~of_fetching_thread(trace, trace.runtime)),
        "data_loader": join(*loader),
        "cpu": join(*work),
    }
    on_device = branches["communication"]
    on_host = host_collectives(trace).spans()
    collectives = on_device if len(on_device) else on_host
    if len(on_host):
        computing = trace.operators.spans(operator_nesting(trace).leaves)
        exposed_on_host = subtract(on_host, join(branches["data_loader"], computing))
        branches["communication"] = join(on_device, exposed_on_host)
    exposed = {}
    below = np.zeros(len(steps), dtype=np.int64)
    covered = EMPTY
    for branch in BRANCHES:
        covered = join(covered, branches[branch])
        reached = covered.covered(steps.start, steps.end)
        exposed[branch] = reached - below
        below = reached
    exposed["other"] = (steps.end - steps.start) - below
    return Timeline(steps, branches, exposed, collectives)


def host_collectives(trace: Trace) -> Table:
    """Return the collectives that run on the host (gloo): without a GPU these are all."""
    table = trace.annotations
    return table.where(named(trace, table, lambda name: name.startswith(HOST_COMMUNICATION)))


_MOST, _MUCH = 0.2, 0.3  # in calls that no usual step makes: of marked steps, of a whole window
_LONG_NS, _LONG = 50_000_000, 0.05  # of the trace: less is not worth leaving out


@once
def begins_context(trace: Trace) -> Mask:
    """Return which driver calls make the device's context: long, and before any work of it."""
    table = trace.runtime
    device = trace.device
    asked = table.start[named(trace, table, ASKS.match)]
    first = min((int(times.min()) for times in (device.start, asked) if len(times)), default=0)
    long = table.end - table.start >= _CONTEXT_NS
    return (table.start < first) & long & ~named(trace, table, _WAITS.search)


def start_up(trace: Trace, start: int, end: int) -> tuple[int, list[Evidence]]:
    """Return where the window begins without start-up, and a fact if that is later."""
    table = trace.runtime
    rows = begins_context(trace) | _loads(trace, _LONG_NS)
    total = table.spans(rows).total
    if not rows.any() or total < max(_LONG * (end - start), _LONG_NS):
        return start, []
    until = int(table.end[rows].max())
    steps = np.concatenate([t.end[named(trace, t, is_optimizer)] for t in trace.ranges])
    if len(steps) > 1 and steps.min() > until:
        until = int(steps.min())
    if (trace.device.start >= until).sum() < len(trace.device) / 2:
        return start, []
    most = np.bincount(table.name[rows], (table.end - table.start)[rows]).argmax()
    left_out = fact(
        "start-up-left-out",
        left_out_s=(until - start) / 1e9,
        calls=int(rows.sum()),
        held_s=total / 1e9,
        most_in=trace.names[most],
    )
    return until, [left_out]


def _loads(trace: Trace, least_ns: float) -> Mask:
    """Return the calls that take long while the device does nothing, as when code is loaded."""
    table = trace.runtime
    lasting = table.end - table.start
    idle = lasting - trace.device.spans().covered(table.start, table.end) >= _IDLE * lasting
    waits = named(trace, table, lambda name: _WAITS.search(name) or _FREES.search(name))
    return (lasting >= least_ns) & idle & ~waits


def much_start_up(trace: Trace, steps: Intervals) -> bool:
    """Return True if calls of a start-up take much of a window that has no marks of steps."""
    table = trace.runtime
    rows = begins_context(trace) | _loads(trace, _CONTEXT_NS)
    held = steps.covered(table.start, table.end)[rows & ~named(trace, table, ASKS.match)]
    return bool(held.sum() > _MUCH * steps.total)


def unusual_part(trace: Trace, steps: Intervals, marked: bool) -> tuple[float, Evidence | None]:
    """Return the seconds of the steps that no usual step has, if they are many, and why."""
    held_ns, call = _earlier_work(trace, Intervals(steps.start[:1], steps.end[:1]))
    if held_ns > _MOST * steps.total:
        held_s = held_ns / 1e9
        part = float(held_ns / steps.total)
        return held_s, fact("earlier-work", call=call, seconds=held_s, part=part)
    table = trace.runtime
    least_ns = max(_MOST * steps.total, _CONTEXT_NS)
    loads = _loads(trace, least_ns)
    held = np.where(loads, steps.covered(table.start, table.end), 0)
    loading_ns = held.sum()
    if not marked or loading_ns <= _MOST * steps.total:
        return 0.0, None
    # No usual step makes a call that takes so much of all of them while the device does nothing.
    loading_s = float(loading_ns / 1e9)
    longest = trace.names[table.name[held.argmax()]]
    part = float(loading_ns / steps.total)
    return loading_s, fact("start-up-within", call=longest, seconds=loading_s, part=part)


def _earlier_work(trace: Trace, steps: Intervals) -> tuple[int, str]:
    """Return for how long the first call waits for work of before the window; and its name."""
    table = trace.runtime
    waits = named(trace, table, _WAITS.search) & (table.end - table.start >= _WAIT_NS)
    if not waits.any():
        return 0, ""
    row = np.flatnonzero(waits)[table.start[waits].argmin()]
    start = table.start[[row]]
    end = table.end[[row]]
    idle = steps.covered(start, end) - trace.device.spans().covered(start, end)
    return int(idle[0]), trace.names[table.name[row]]


def usual_part(recording: Recording, trace: TraceStatistics) -> Recording:
    """Return the recording without the driver calls of its unusual part."""
    lost_s = trace.unusual_s
    if not lost_s or not trace.step_s:
        return recording
    rest_s = max(trace.step_s - lost_s, 1e-9)
    left_s = {name: (s := getattr(trace, name)) and max(s - lost_s, 0.0) for name in _HELD}
    rest = replace(trace, step_s=rest_s, **left_s)
    scale = trace.step_s / rest_s
    driver = max((trace.shares.runtime or 0.0) - lost_s / trace.step_s, 0.0)
    shares = asdict(replace(trace.shares, runtime=driver))
    return replace(
        recording,
        trace=rest,
        shares=Shares(
            **{name: share and min(share * scale, 1.0) for name, share in shares.items()}
        ),
    )


def annotate(
    source: Path, target: Path, timeline: Timeline, base_us: float, findings: Sequence[Finding]
) -> None:
    """Write `target`: the trace and our tracks; compressed where its name ends in .gz.

    The trace is copied as far as it can be read; the timeline counts from `base_us` on its clock.
    Raise UsageError if `source` is no trace or `target` cannot be written.
    """
    ours = b",\n".join(msgspec.json.encode(event) for event in _events(timeline, base_us, findings))
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the trace itself: name another file to annotate it into.")
    try:
        with source.open("rb") as stream, replacing(target) as file:
            out: Any = contextlib.nullcontext(file)
            if target.name.endswith(".gz"):
                out = gzip.GzipFile("", "wb", compresslevel=1, fileobj=file)
            with out as written:
                _copy(TraceFile(stream, str(source)), ours, written)
    except OSError as error:
        raise UsageError(
            f"Cannot write {target} ({error.strerror or error}): free space or name another file."
        ) from error


def _copy(trace: TraceFile, ours: bytes, out: IO[bytes]) -> None:
    """Write our events and those of the trace, and its metadata on the side where it stood."""
    runs = trace.runs()
    run = next(runs, None)  # what stands before the events is known from here on
    head = {**trace.metadata, "traceEvents": []}
    out.write(b"[" if trace.is_list else msgspec.json.encode(head)[: -len(b"]}")])
    out.write(b"\n" + ours)
    while run is not None:  # other bytes than UTF-8 stand in strings that nothing reads
        out.write(b",\n" + bytes(run.text).decode("utf-8", "replace").encode())
        run = next(runs, None)
    tail = {key: value for key, value in trace.metadata.items() if key not in head}
    end = b"" if trace.is_list else b"," + msgspec.json.encode(tail)[1:] if tail else b"}"
    out.write(b"\n]" + end)


def _events(
    timeline: Timeline, base_us: float, findings: Sequence[Finding]
) -> Iterator[dict[str, Any]]:
    steps = timeline.steps
    name = {"ph": "M", "pid": _PROCESS, "name": "process_name"}
    yield {**name, "args": {"name": "torchdoctor"}}
    yield {**name, "name": "process_sort_index", "args": {"sort_index": -1}}
    for track, title in _TRACKS.items():
        yield {**name, "name": "thread_name", "tid": track, "args": {"name": title}}
        yield {**name, "name": "thread_sort_index", "tid": track, "args": {"sort_index": track}}

    def slice_(track: int, title: str, start: int, end: int, **args: Any) -> dict[str, Any]:
        at_us, end_us = (round(base_us + time / 1000, 3) for time in (start, end))
        # Perfetto counts ns in a float, which at today's Unix time resolves 256 ns, and drops a
        # slice that reaches into the next one.
        resolved_us = float(np.spacing(end_us * 1000)) / 1000
        lasting_us = max(round(end_us - at_us - resolved_us, 3), 0.0)
        event = {"ph": "X", "cat": OUR_CATEGORY, "name": title, "pid": _PROCESS, "tid": track}
        return {**event, "ts": at_us, "dur": lasting_us, "args": args}

    spans = zip(steps.start.tolist(), steps.end.tolist(), strict=True)
    for number, (start, end) in enumerate(spans):
        shares = {
            branch: round(float(spent[number]) / max(end - start, 1), 4)
            for branch, spent in timeline.exposed.items()
        }
        yield slice_(_STEPS, f"step {number}" if steps.known else "the trace", start, end, **shares)
    for branch, exposed in timeline.exposed_intervals.items():
        drawn = exposed.end - exposed.start >= _SHORTEST_NS
        columns = exposed.start[drawn].tolist(), exposed.end[drawn].tolist()
        for start, end in zip(*columns, strict=True):
            yield slice_(_EXPOSED, SHARE_LABELS[branch], start, end)
    for finding in findings:
        share = finding.share_of_step
        title = finding.check if share is None else f"{finding.check} {share:.0%}"
        evidence = " ".join(proof.sentence for proof in finding.evidence)
        first = int(steps.start.min())
        last = int(steps.end.max())
        yield slice_(_FINDINGS, title, first, last, evidence=evidence)
