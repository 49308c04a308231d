"""Device events of some steps in stream order, points on the host's threads, and all waits.

An event starts when its launch has reached the device, and the events before it on its stream and
of other streams that it waits for have ended. What is later is a wait of unknown cause.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchdoctor.schema.intervals import EMPTY, Intervals, Ints, join, subtract
from torchdoctor.trace.columns import Mask, Table, Trace, named, rows_by
from torchdoctor.trace.kinds import COPY_CALL, KERNEL, MEMCPY, is_communication
from torchdoctor.trace.loop_marks import is_loader, main_thread
from torchdoctor.trace.nesting import launch_rows
from torchdoctor.trace.timeline import Timeline

CLOCK_NS = 5_000  # by how much the clocks of host and device may disagree
UNEXPLAINED_NS = 20_000  # a start this much later than explained waits for something unknown
_QUEUED_GAP_NS = 20_000  # a longer gap between queued events has a cause of its own
_LONGEST_LATENCY_NS = 100_000  # of a launch on an idle stream; longer waits for something else
LONG_CALL_NS = 20_000  # of a launch; a usual one takes 3 to 10 us
NEVER = np.iinfo(np.int64).min // 4
_WAIT_EVENT = re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")
_WAITING = re.compile(r"Synchronize|WaitEvent|Free|Malloc|Alloc|Unregister")
_MOST_PAIRS = 10_000_000  # of a call that waits and a stream: 80 MB for each column
_DEVICE_SYNC = re.compile(r"(?:cuda|hip)(?:Device|Thread)Synchronize|(?:cu|hip)CtxSynchronize")
_STREAM_SYNC = re.compile(r"(?:cuda|hip|cu)StreamSynchronize")
_EVENT_SYNC = re.compile(r"(?:cuda|hip|cu)EventSynchronize")
_FREEING = re.compile(r"(?:cuda|hip)(?:Free|Malloc|Host|Unregister)|cuMem(?:Free|Alloc|HostAlloc)")
_FULL_QUEUE = 512  # launches that have not begun: queues take about a thousand
_WAKE_UP_NS = 100_000  # after the awaited event the call has returned by then


class Cost(IntEnum):
    """What time can belong to; a what-if takes one of them away. FIXED stays in all of them."""

    LOADER, COPY, COMMUNICATION, GPU, CPU, RUNTIME, FIXED = range(7)


@dataclass(frozen=True, kw_only=True)
class DeviceEvents:
    """Device events in order of stream, then start; indexes are into these columns, -1: none.

    The first event of a stream may be `earlier`: launched before the window, still in its way.
    """

    start: Ints
    end: Ints
    stream: Ints  # dense numbers of (device, stream)
    cost: Ints  # class of the time that it takes
    name: Ints  # interned
    call: Ints  # row of the launching runtime call, -1: earlier, or not recorded
    called: Ints  # when that call began; NEVER: no such call
    submitted: Ints  # when the launch reached the queue, inside its call; NEVER: not known
    step: Ints  # of the window, -1: none
    earlier: Mask
    latency: Ints  # usual time from `submitted` to the start on an idle stream
    gap: Ints  # usual time from the end of the event before
    stream_first: Ints  # per stream: index of its first event; one more entry ends the last

    def __len__(self) -> int:
        return len(self.start)

    def streams(self) -> Iterator[tuple[int, int]]:
        """Return the first event of each stream, and that of the next one."""
        return itertools.pairwise(self.stream_first.tolist())

    @property
    def previous(self) -> Ints:
        """Return the event before on the same stream, or -1."""
        before = np.arange(len(self)) - 1
        before[self.stream_first[:-1]] = -1
        return before

    def last_called_before(self, times: Ints) -> Ints:
        """Return the last event that was launched before each moment by stream, or -1."""
        last_event = np.full((len(times), len(self.stream_first) - 1), -1)
        for stream, (first, last) in enumerate(self.streams()):
            called = np.maximum.accumulate(self.called[first:last])
            place = np.searchsorted(called, times, side="left") - 1
            last_event[:, stream] = np.where(place >= 0, first + place, -1)
        return last_event


def device_events(trace: Trace, timeline: Timeline, first: int, last: int) -> DeviceEvents:
    """Return the device events that these steps launched, and earlier work that delays them."""
    steps = timeline.steps
    device = trace.device
    row = launch_rows(trace)
    launched = row >= 0
    called = np.where(launched, trace.runtime.start[row], NEVER) if len(trace.runtime) else row
    begin = steps.host_start[first]
    end = steps.host_end[last]
    inside = launched & (called >= begin) & (called < end)
    # Without a launch an event can only be placed by its own time.
    inside |= ~launched & (device.start >= begin) & (device.start < steps.end[last])
    earlier = launched & (called < begin) & (device.end > begin)
    rows = np.flatnonzero(inside | earlier)
    stream = _dense(_dense(device["device"][rows]) * len(device) + _dense(device["stream"][rows]))
    order = np.lexsort((device.end[rows], device.start[rows], stream))
    rows, stream = rows[order], stream[order]
    table, row, earlier = device.where(rows), row[rows], earlier[rows]
    known = (row >= 0) & ~earlier
    returned = np.where(known, trace.runtime.end[row], NEVER) if len(trace.runtime) else row
    step = np.searchsorted(steps.host_start, called[rows], side="right") - 1
    counted = known & (step >= first) & (returned <= steps.host_end[np.maximum(step, 0)])
    counted |= (row < 0) & (not steps.known)
    collective = named(trace, table, is_communication)
    of_kernels = np.where(collective, Cost.COMMUNICATION, Cost.GPU)
    copies = np.where(table["kind"] == MEMCPY, Cost.COPY, Cost.FIXED)
    events = DeviceEvents(
        start=table.start,
        end=table.end,
        stream=stream,
        cost=np.where(table["kind"] == KERNEL, of_kernels, copies),
        name=table.name,
        call=np.where(earlier, -1, row),
        called=np.where(known, called[rows], NEVER),
        submitted=np.where(known, called[rows], NEVER),
        step=np.where(counted, np.maximum(step - first, 0), -1),
        earlier=earlier,
        latency=np.zeros(len(table), dtype=np.int64),
        gap=np.zeros(len(table), dtype=np.int64),
        stream_first=np.searchsorted(stream, np.arange(int(stream.max(initial=-1)) + 2)),
    )
    return _with_usual_delays(events, table["kind"], returned)


def too_many_pairs(trace: Trace) -> bool:
    """Return True where to ask of each call which streams it awaits takes too long, and memory."""
    device = trace.device
    streams = len(np.unique(np.stack([device["device"], device["stream"]]), axis=1).T)
    return streams * int(named(trace, trace.runtime, _WAITING.search).sum()) > _MOST_PAIRS


def _dense(values: Ints) -> Ints:
    return np.asarray(np.unique(values, return_inverse=True)[1]).reshape(-1)


def _with_usual_delays(events: DeviceEvents, kind: Ints, returned: Ints) -> DeviceEvents:
    """Return the events with the usual launch latency and queued gap of each kind."""
    previous = events.previous
    latencies, gaps = np.zeros((2, len(events)), dtype=np.int64)
    freed = np.where(previous >= 0, events.end[previous], NEVER)
    known = events.call >= 0
    idle = known & (freed <= events.called)
    after_call = events.start - events.called
    for number in np.unique(kind):
        of_kind = kind == number
        direct = after_call[of_kind & idle & (returned - events.called < LONG_CALL_NS)]
        direct = direct[direct < _LONGEST_LATENCY_NS]
        # The lower quartile: above it are launches that waited for something else as well.
        latency = int(np.percentile(direct, 25, method="lower")) if len(direct) else CLOCK_NS
        latencies[of_kind] = latency
        gap = events.start - freed
        queued = of_kind & known & (events.called + latency < freed) & (gap < _QUEUED_GAP_NS)
        queued &= gap > -CLOCK_NS
        gaps[of_kind] = round(float(gap[queued].mean())) if queued.any() else 1_000
    # Events that overlap on their stream do not wait for the end of the one before.
    overlap = (previous >= 0) & (events.start < freed - CLOCK_NS // 2)
    gaps[overlap] = (events.start - freed)[overlap]
    # A long call submits somewhere inside: on an idle stream the start tells where.
    long = known & (returned - events.called >= LONG_CALL_NS) & (freed <= events.called + CLOCK_NS)
    at = np.clip(events.start - latencies, events.called, np.maximum(returned, events.called))
    submitted = np.where(long, at, events.called)
    order = np.argsort(events.start, kind="stable")  # of a call (a graph launches many) the first
    _, first, group = np.unique(events.call[order], return_index=True, return_inverse=True)
    of_call = np.empty(len(events), dtype=np.int64)
    of_call[order] = order[first][group.reshape(-1)]
    submitted = np.where(known, submitted[of_call], submitted)
    return replace(events, latency=latencies, gap=gaps, submitted=submitted)


def cross_stream_waits(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints]:
    """Return the events that wait for one of another stream, by calls or by times, and those."""
    called = _declared_waits(trace, events)
    late = start_later_by(events, *called)
    inferred = _inferred_waits(events, np.flatnonzero(late > CLOCK_NS))
    return np.append(called[0], inferred[0]), np.append(called[1], inferred[1])


def start_later_by(events: DeviceEvents, waiting: Ints, awaited: Ints) -> Ints:
    """Return how much later each event starts than its launch, stream and waits explain."""
    previous = events.previous
    begin = events.submitted + events.latency
    after = np.where(previous >= 0, events.end[previous] + events.gap, NEVER)
    begin = np.maximum(begin, after)
    np.maximum.at(begin, waiting, events.end[awaited])
    return np.where(begin > NEVER // 2, events.start - begin, 0)


def _declared_waits(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints]:
    calls = trace.runtime.where(named(trace, trace.runtime, _WAIT_EVENT.match))
    known = np.flatnonzero(events.call >= 0)
    none = np.zeros(0, dtype=np.int64)
    if not len(calls) or not len(known):
        return none, none
    thread = trace.runtime.thread[events.call[known]].astype(np.int64)
    order = np.lexsort((events.called[known], thread))
    known, thread = known[order], thread[order]
    waiting = []
    launches_of = rows_by(thread)
    for number, rows in rows_by(calls.thread).items():  # the thread's next launch is what waits
        own = known[launches_of.get(number, [])]
        times = calls.start[rows]
        times = times[times >= events.called[own[0]]] if len(own) else times[:0]
        place = np.searchsorted(events.called[own], times)
        waiting.append(own[np.unique(place[place < len(own)])])
    event = np.concatenate(waiting)
    candidate = events.last_called_before(events.called[event])
    good = (candidate >= 0) & (events.stream[event][:, None] != events.stream[candidate])
    start = events.start[event][:, None]
    good &= events.end[candidate] <= start + CLOCK_NS
    # Which streams were meant: the one used last before, and those that ended just then.
    recent = np.where(good, events.called[candidate], NEVER)
    meant = recent == recent.max(axis=1, keepdims=True)
    which, stream = np.nonzero(good & (meant | (events.end[candidate] >= start - UNEXPLAINED_NS)))
    return event[which], candidate[which, stream]


def _inferred_waits(events: DeviceEvents, late: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(events.end, kind="stable")
    place = np.searchsorted(events.end[order], events.start[late] + 1_000, side="right") - 1
    whom = order[np.maximum(place, 0)]
    good = (place >= 0) & (events.end[whom] >= events.start[late] - UNEXPLAINED_NS)
    good &= events.stream[whom] != events.stream[late]
    good &= events.start[whom] < events.start[late]
    return late[good], whom[good]


@dataclass(frozen=True)
class HostWaits:
    """One entry per call and device event: `call` is a row of `Trace.runtime`."""

    call: Ints
    event: Ints  # index into the device events
    cost: Ints  # class of the time after the wait, and of the wait itself


def host_waits(trace: Trace, events: DeviceEvents, rows: Ints) -> HostWaits:
    """Return what the calls `rows` of `trace.runtime` wait for on the device.

    The runtime does not record it: stream order, what was launched before, and times decide.
    """
    waits = {
        Cost.COPY: _copies(trace, events),
        Cost.CPU: _full_queues(trace, events),
        Cost.RUNTIME: _synchronisations(trace, events, rows),
    }
    calls, awaited = (np.concatenate(column) for column in zip(*waits.values(), strict=True))
    costs = np.repeat(list(waits), [len(call) for call, _ in waits.values()])
    return HostWaits(calls, awaited, costs)


def _matching(trace: Trace, rows: Ints, pattern: re.Pattern[str]) -> Mask:
    return named(trace, trace.runtime, pattern.match)[rows]


def _synchronisations(trace: Trace, events: DeviceEvents, rows: Ints) -> tuple[Ints, Ints]:
    """Return the waits of calls that synchronise, some on the way to something else (cudaFree)."""
    runtime = trace.runtime
    stream_only = _matching(trace, rows, _STREAM_SYNC)
    wanted = stream_only | _matching(trace, rows, _DEVICE_SYNC)
    long = runtime.end[rows] - runtime.start[rows] >= LONG_CALL_NS
    wanted |= long & _matching(trace, rows, _FREEING)
    calls, stream_only = rows[wanted], stream_only[wanted]
    last = events.last_called_before(runtime.start[calls])
    ended = np.where(last >= 0, events.end[last], np.iinfo(np.int64).max)
    waited = ended <= runtime.end[calls][:, None] + LONG_CALL_NS  # clocks drift apart
    if stream_only.any():
        waited &= ~stream_only[:, None] | _awaited_streams(trace, events, calls, last, ended)
    which, stream = np.nonzero(waited)
    of_event = _event_synchronisations(trace, events, rows)
    return np.append(calls[which], of_event[0]), np.append(last[which, stream], of_event[1])


def _awaited_streams(
    trace: Trace, events: DeviceEvents, calls: Ints, last: Ints, ended: Ints
) -> Mask:
    """Return which streams a call may wait for: the last used, or one that ended just then."""
    runtime = trace.runtime
    begin = runtime.start[calls][:, None]
    end = runtime.end[calls][:, None]
    called = np.where(last >= 0, events.called[last], -1)
    own_thread = runtime.thread[calls][:, None]
    same_thread = (events.call[last] >= 0) & (runtime.thread[events.call[last]] == own_thread)
    rank = np.where(last >= 0, called + same_thread * (1 << 60), -1)
    latest = rank == rank.max(axis=1, initial=0, keepdims=True)
    explains = (ended > begin) & (ended <= end + CLOCK_NS) & (ended >= end - _WAKE_UP_NS)
    explains &= end - begin >= LONG_CALL_NS
    own_explains = (latest & explains).any(axis=1, keepdims=True)
    awaited: Mask = latest | (explains & ~own_explains)
    return awaited


def _event_synchronisations(trace: Trace, events: DeviceEvents, rows: Ints) -> tuple[Ints, Ints]:
    """Return the waits of cudaEventSynchronize: for the event that ended right before."""
    runtime = trace.runtime
    calls = rows[_matching(trace, rows, _EVENT_SYNC)]
    calls = calls[runtime.end[calls] - runtime.start[calls] >= LONG_CALL_NS]
    order = np.argsort(events.end, kind="stable")
    place = np.searchsorted(events.end[order], runtime.end[calls] + CLOCK_NS, side="right") - 1
    event = order[np.maximum(place, 0)] if len(order) else place
    good = place >= 0
    good[good] = events.end[event[good]] >= np.maximum(
        runtime.end[calls[good]] - _WAKE_UP_NS, runtime.start[calls[good]]
    )
    return calls[good], event[good]


def _copies(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints]:
    """Return the copy calls that return when their copy is done, or (pageable) well under way."""
    runtime = trace.runtime
    copies = np.flatnonzero((events.cost == Cost.COPY) & (events.call >= 0))
    call = events.call[copies]
    is_copy_call = _matching(trace, call, COPY_CALL)
    pageable = np.array(["ageable" in trace.names[name] for name in events.name[copies]], bool)
    done = events.end[copies] <= runtime.end[call]  # exactly: most calls return just before
    under_way = pageable & (events.start[copies] <= runtime.end[call])
    good = is_copy_call & (done | under_way)
    return call[good], copies[good]


def _full_queues(trace: Trace, events: DeviceEvents) -> tuple[Ints, Ints]:
    """Return the launch calls that block because the queue is full: an earlier event must begin."""
    runtime = trace.runtime
    launched = np.flatnonzero((events.call >= 0) & (events.cost != Cost.COPY))
    call = events.call[launched]
    length = runtime.end[call] - runtime.start[call]
    launched = launched[length >= LONG_CALL_NS]
    calls = []
    waited = []
    for event in launched.tolist():  # few: launches that took long
        first = int(events.stream_first[events.stream[event]])
        returned = runtime.end[events.call[event]]
        begun = first + int(np.searchsorted(events.start[first:event], returned, side="right"))
        if event - begun >= _FULL_QUEUE and begun > first:
            calls.append(int(events.call[event]))
            waited.append(begun - 1)
    return np.array(calls, dtype=np.int64), np.array(waited, dtype=np.int64)


class Point(IntEnum):
    """Kinds of points, in the order in which those of one moment follow each other."""

    WAIT_END, RESUME, STEP_END, STEP_START, WAIT_START, LAUNCH, HAND_OVER = range(7)


@dataclass
class HostPoints:
    """Points in order of thread, then time. `chain` is the point before, -1: none.

    `between` holds the nanoseconds from that point to this one by class: shape (points, classes).
    """

    time: Ints
    thread: Ints
    kind: Ints
    ref: Ints  # row of the runtime call, or number of the step in the window
    chain: Ints
    between: NDArray[np.float64]
    also_after: list[tuple[int, int, int]]  # point, further point before it, nanoseconds

    def __len__(self) -> int:
        return len(self.time)

    def of(self, kind: Point, refs: Ints) -> Ints:
        """Return the points of a kind that have these references."""
        rows = np.flatnonzero(self.kind == kind)
        rows = rows[np.argsort(self.ref[rows], kind="stable")]
        return rows[np.searchsorted(self.ref[rows], refs)]


def host_points(
    trace: Trace,
    timeline: Timeline,
    window: tuple[int, int],
    events: DeviceEvents,
    waits: HostWaits,
) -> HostPoints:
    """Return all points of the steps `window` (first and last, both included).

    They are launches, waits, step borders, and the moments where one thread goes on for another
    (the main thread sleeps in backward() while the autograd thread works).
    """
    steps, (first, last) = timeline.steps, window
    main = main_thread(trace)
    runtime = trace.runtime
    launches, at = np.unique(events.call, return_index=True)
    launches, at = launches[launches >= 0], at[launches >= 0]
    waiting = np.unique(waits.call)
    borders = np.arange(first, last + 1)
    on_main = np.full(len(borders), main)
    parts = [
        (events.submitted[at], runtime.thread[launches], Point.LAUNCH, launches),
        (runtime.start[waiting], runtime.thread[waiting], Point.WAIT_START, waiting),
        (runtime.end[waiting], runtime.thread[waiting], Point.WAIT_END, waiting),
        (steps.host_start[borders], on_main, Point.STEP_START, borders - first),
        (steps.host_end[borders], on_main, Point.STEP_END, borders - first),
    ]
    time = np.concatenate([part[0] for part in parts])
    thread = np.concatenate([part[1] for part in parts]).astype(np.int64)
    kind = np.concatenate([np.full(len(part[0]), part[2]) for part in parts])
    ref = np.concatenate([part[3] for part in parts])
    bursts = _bursts(trace, timeline, window, main, time, thread)
    hands = {(burst.silent, Point.HAND_OVER) for burst in bursts}
    hands |= {(burst.back, Point.RESUME) for burst in bursts}
    of_hands = np.array(sorted(hands), dtype=np.int64).reshape(-1, 2)
    time = np.concatenate([time, of_hands[:, 0]])
    thread = np.concatenate([thread, np.full(len(hands), main)])
    kind = np.concatenate([kind, of_hands[:, 1]])
    ref = np.concatenate([ref, np.full(len(hands), -1)])
    order = np.lexsort((kind, time, thread))
    points = _chained(trace, time[order], thread[order], kind[order], ref[order])
    _hand_over(points, bursts, np.argsort(order), main)
    return points


def _chained(trace: Trace, time: Ints, thread: Ints, kind: Ints, ref: Ints) -> HostPoints:
    count = len(time)
    chain = np.arange(count) - 1
    chain[np.diff(thread, prepend=-1) != 0] = -1
    between = np.zeros((count, len(Cost)))
    begin = np.where(chain >= 0, time[chain], time)
    threads = _Threads(trace)
    for number, rows in rows_by(thread).items():
        left = (time - begin)[rows]
        for cost, spent in threads.spent(number).items():
            between[rows, cost] = spent.covered(begin[rows], time[rows])
            left = left - between[rows, cost]
        between[rows, Cost.CPU] = left
    between[kind == Point.WAIT_END] = 0  # the wait's own node says how long that takes
    return HostPoints(time, thread, kind, ref, chain, between, [])


class _Threads:
    """What each thread of the host spends its time in; tables are divided by thread once."""

    def __init__(self, trace: Trace) -> None:
        runtime = trace.runtime
        copies = named(trace, runtime, COPY_CALL.match)
        launches = named(trace, runtime, lambda name: "Launch" in name or "Memset" in name)
        self._loading = [_by_thread(t.where(named(trace, t, is_loader))) for t in trace.ranges]
        self._copying = _by_thread(runtime.where(copies))
        self._other = _by_thread(runtime.where(~copies & ~launches))
        self._working = [_by_thread(table) for table in (trace.operators, runtime)]

    def spent(self, thread: int) -> dict[int, Intervals]:
        """Return a thread's time in the loader, in copy calls, in other calls without a launch."""
        loading = join(*(spans(thread) for spans in self._loading))
        copying = subtract(self._copying(thread), loading)
        other = subtract(self._other(thread), join(loading, copying))
        return {Cost.LOADER: loading, Cost.COPY: copying, Cost.RUNTIME: other}

    def works(self, thread: int) -> Intervals:
        """Return a thread's time in operators and calls of the driver."""
        return join(*(spans(thread) for spans in self._working))


def _by_thread(table: Table) -> Callable[[int], Intervals]:
    """Return what tells the time that the rows of a thread cover."""
    rows = rows_by(table.thread)

    def spans(thread: int) -> Intervals:
        return table.spans(rows[thread]) if thread in rows else EMPTY

    return spans


class _Burst(NamedTuple):
    """What another thread does within one silence of the main thread."""

    first: int  # points, before ordering
    last: int
    silent: int  # when the main thread fell silent, and when it went on
    back: int
    begins: bool  # it does not go on with what it did before
    asleep: bool  # the main thread waits for it


def _bursts(
    trace: Trace, timeline: Timeline, window: tuple[int, int], main: int, time: Ints, thread: Ints
) -> list[_Burst]:
    bursts: list[_Burst] = []
    begin = timeline.steps.host_start[window[0]]
    tables = (trace.operators, trace.annotations, trace.runtime)
    rows = [t.where((t.thread == main) & (t.end >= begin)) for t in tables]
    edges = np.unique(np.concatenate([part for t in rows for part in (t.start, t.end)]))
    edges = edges[edges >= begin]
    calls = trace.runtime.spans(trace.runtime.thread == main)
    threads = _Threads(trace)
    busy = join(calls, threads.spent(main)[Cost.LOADER])
    for number, own in rows_by(thread).items():
        if number == main:
            continue
        own = own[np.argsort(time[own], kind="stable")]
        gap = np.searchsorted(edges, time[own], side="right")
        own, gap = own[(gap > 0) & (gap < len(edges))], gap[(gap > 0) & (gap < len(edges))]
        changes = np.diff(gap) != 0
        first = np.append(True, changes)[: len(gap)]
        last = np.append(changes, True)[: len(gap)]
        silent = edges[gap[first] - 1]
        back = edges[gap[first]]
        works = threads.works(number)
        begins = ~works.contain(silent)
        asleep = ~works.contain(back) & ~busy.contain(silent)
        columns = (own[first], own[last], silent, back, begins, asleep)
        bursts += map(_Burst, *(column.tolist() for column in columns))
    return bursts


def _hand_over(points: HostPoints, bursts: Sequence[_Burst], place: Ints, main: int) -> None:
    """Put bursts after the main thread's last point, and its next point after them."""
    on_main = {
        (int(points.time[row]), int(points.kind[row])): int(row)
        for row in np.flatnonzero((points.thread == main) & (points.kind != Point.LAUNCH))
    }
    resumed: dict[int, int] = {}  # the last point of other threads that each is after
    for burst in bursts:
        first = int(place[burst.first])
        last = int(place[burst.last])
        if burst.begins:
            points.chain[first] = on_main[burst.silent, Point.HAND_OVER]
            points.between[first] = 0
            cost = Cost.CPU if burst.asleep else Cost.FIXED
            points.between[first, cost] = points.time[first] - burst.silent
        if burst.asleep:
            point = on_main[burst.back, Point.RESUME]
            latest = max(last, resumed.get(point, last), key=lambda row: points.time[row])
            for other in {last, resumed.get(point, last)} - {latest}:
                points.also_after.append((point, other, int(burst.back - points.time[other])))
            resumed[point] = latest
            points.chain[point] = latest
            points.between[point] = 0
            points.between[point, Cost.CPU] = burst.back - points.time[latest]
