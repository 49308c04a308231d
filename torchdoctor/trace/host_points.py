"""Points on the host's threads, and the time between them by what it was spent in.

A point is a launch, the begin or end of a wait, or a border of a step. The points of a thread form
a chain in order of time. Where the main thread falls silent while another one works (it sleeps in
backward() while the autograd thread launches), the chains are tied together:

1. What another thread does between two events of the main thread is a *burst*.
2. The main thread gets a point where it fell silent (HAND_OVER) and one where it goes on (RESUME).
3. A burst that begins something new comes after the first of these; the second comes after a burst
   that the main thread slept for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchdoctor.schema.intervals import EMPTY, Intervals, Ints, join, subtract
from torchdoctor.trace.columns import Table, Trace, named, rows_by
from torchdoctor.trace.device_order import Cost, DeviceEvents
from torchdoctor.trace.host_waits import HostWaits
from torchdoctor.trace.kinds import COPY_CALL
from torchdoctor.trace.loop_marks import is_loader, main_thread
from torchdoctor.trace.timeline import Timeline


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


class _Points(NamedTuple):
    """Columns of points in any order."""

    time: Ints
    thread: Ints
    kind: Ints
    ref: Ints


class _Burst(NamedTuple):
    """What another thread does within one silence of the main thread."""

    first: int  # points, before ordering
    last: int
    silent: int  # when the main thread fell silent, and when it went on
    back: int
    begins: bool  # it does not go on with what it did before
    asleep: bool  # the main thread waits for it


def host_points(
    trace: Trace,
    timeline: Timeline,
    window: tuple[int, int],
    events: DeviceEvents,
    waits: HostWaits,
) -> HostPoints:
    """Return all points of the steps `window` (first and last, both included)."""
    main = main_thread(trace)
    threads = _ThreadTimes(trace)
    recorded = _recorded_points(trace, timeline, window, events, waits, main)
    begin = int(timeline.steps.host_start[window[0]])
    bursts = _bursts(trace, threads, recorded, main, begin)
    unordered = _joined([recorded, _points_of_hand_over(bursts, main)])
    order = np.lexsort((unordered.kind, unordered.time, unordered.thread))
    points = _chained(threads, _Points(*(column[order] for column in unordered)))
    _tie_to_main(points, bursts, np.argsort(order), main)
    return points


def _recorded_points(
    trace: Trace,
    timeline: Timeline,
    window: tuple[int, int],
    events: DeviceEvents,
    waits: HostWaits,
    main: int,
) -> _Points:
    """Return launches, begins and ends of waits, and the borders of steps."""
    first, last = window
    steps = timeline.steps
    runtime = trace.runtime
    launches, event = np.unique(events.call, return_index=True)
    submitted = events.submitted[event[launches >= 0]]
    launches = launches[launches >= 0]
    waiting = np.unique(waits.call)
    numbers = np.arange(first, last + 1)
    on_main = np.full(len(numbers), main)
    begin = steps.host_start[numbers]
    end = steps.host_end[numbers]
    return _joined(
        [
            _of_kind(Point.LAUNCH, submitted, runtime.thread[launches], launches),
            _of_kind(Point.WAIT_START, runtime.start[waiting], runtime.thread[waiting], waiting),
            _of_kind(Point.WAIT_END, runtime.end[waiting], runtime.thread[waiting], waiting),
            _of_kind(Point.STEP_START, begin, on_main, numbers - first),
            _of_kind(Point.STEP_END, end, on_main, numbers - first),
        ]
    )


def _of_kind(kind: Point, time: Ints, thread: NDArray[np.integer], ref: Ints) -> _Points:
    return _Points(time, thread.astype(np.int64), np.full(len(time), kind), ref)


def _joined(parts: Sequence[_Points]) -> _Points:
    return _Points(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _points_of_hand_over(bursts: Sequence[_Burst], main: int) -> _Points:
    """Return where the main thread falls silent and goes on: one point of a kind each moment."""
    moments = {(burst.silent, int(Point.HAND_OVER)) for burst in bursts}
    moments |= {(burst.back, int(Point.RESUME)) for burst in bursts}
    columns = np.array(sorted(moments), dtype=np.int64).reshape(-1, 2)
    count = len(columns)
    return _Points(columns[:, 0], np.full(count, main), columns[:, 1], np.full(count, -1))


def _chained(threads: _ThreadTimes, points: _Points) -> HostPoints:
    """Return ordered points, each with the one before on its thread and the time between them."""
    time, thread, kind, ref = points
    count = len(time)
    chain = np.arange(count) - 1
    chain[np.diff(thread, prepend=-1) != 0] = -1
    begin = np.where(chain >= 0, time[chain], time)
    between = np.zeros((count, len(Cost)))
    for number, rows in rows_by(thread).items():
        left = (time - begin)[rows]
        for cost, spent in threads.spent(number).items():
            between[rows, cost] = spent.covered(begin[rows], time[rows])
            left = left - between[rows, cost]
        between[rows, Cost.CPU] = left
    between[kind == Point.WAIT_END] = 0  # the wait's own node says how long that takes
    return HostPoints(time, thread, kind, ref, chain, between, [])


class _ThreadTimes:
    """What each thread of the host spends its time in; tables are divided by thread once."""

    def __init__(self, trace: Trace) -> None:
        runtime = trace.runtime
        copies = named(trace, runtime, COPY_CALL.match)
        launches = named(trace, runtime, _is_launch)
        self._loading = [
            _spans_by_thread(table.where(named(trace, table, is_loader))) for table in trace.ranges
        ]
        self._copying = _spans_by_thread(runtime.where(copies))
        self._other = _spans_by_thread(runtime.where(~copies & ~launches))
        self._operators = _spans_by_thread(trace.operators)
        self._calls = _spans_by_thread(runtime)

    def spent(self, thread: int) -> dict[Cost, Intervals]:
        """Return a thread's time in the loader, in copy calls, in other calls without a launch."""
        loading = join(*(spans(thread) for spans in self._loading))
        copying = subtract(self._copying(thread), loading)
        other = subtract(self._other(thread), join(loading, copying))
        return {Cost.LOADER: loading, Cost.COPY: copying, Cost.RUNTIME: other}

    def works(self, thread: int) -> Intervals:
        """Return a thread's time in operators and calls of the driver."""
        return join(self._operators(thread), self._calls(thread))

    def is_held(self, thread: int) -> Intervals:
        """Return the time in which a call of the driver or a loader holds a thread."""
        return join(self._calls(thread), self.spent(thread)[Cost.LOADER])


def _is_launch(name: str) -> bool:
    return "Launch" in name or "Memset" in name


def _spans_by_thread(table: Table) -> Callable[[int], Intervals]:
    """Return what tells the time that the rows of a thread cover."""
    rows = rows_by(table.thread)

    def spans(thread: int) -> Intervals:
        return table.spans(rows[thread]) if thread in rows else EMPTY

    return spans


def _bursts(
    trace: Trace, threads: _ThreadTimes, points: _Points, main: int, begin: int
) -> list[_Burst]:
    """Return the bursts of all other threads, from the moment `begin` on."""
    edges = _edges_of_thread(trace, main, begin)
    held = threads.is_held(main)
    bursts: list[_Burst] = []
    for thread, rows in rows_by(points.thread).items():
        if thread == main:
            continue
        rows = rows[np.argsort(points.time[rows], kind="stable")]
        # A silence is known by the edge that ends it; before the first and after the last is none.
        silence = np.searchsorted(edges, points.time[rows], side="right")
        is_between = (silence > 0) & (silence < len(edges))
        rows = rows[is_between]
        silence = silence[is_between]
        first = np.flatnonzero(np.diff(silence, prepend=-1))
        last = np.flatnonzero(np.diff(silence, append=-1))
        silent = edges[silence[first] - 1]
        back = edges[silence[first]]
        works = threads.works(thread)
        begins = ~works.contain(silent)
        asleep = ~works.contain(back) & ~held.contain(silent)
        columns = (rows[first], rows[last], silent, back, begins, asleep)
        bursts += map(_Burst, *(column.tolist() for column in columns))
    return bursts


def _edges_of_thread(trace: Trace, thread: int, begin: int) -> Ints:
    """Return when anything of a thread begins or ends, from a moment on; between it is silent."""
    moments = []
    for table in (trace.operators, trace.annotations, trace.runtime):
        rows = (table.thread == thread) & (table.end >= begin)
        moments += [table.start[rows], table.end[rows]]
    edges = np.unique(np.concatenate(moments))
    return edges[edges >= begin]


def _tie_to_main(points: HostPoints, bursts: Sequence[_Burst], place: Ints, main: int) -> None:
    """Put bursts after the main thread's last point, and its next point after them.

    `place` tells where in `points` those lie that a burst names.
    """
    on_main = {
        (int(points.time[row]), int(points.kind[row])): int(row)
        for row in np.flatnonzero((points.thread == main) & (points.kind != Point.LAUNCH))
    }
    awaited: dict[int, int] = {}  # the latest point of another thread that each RESUME is after
    for burst in bursts:
        first = int(place[burst.first])
        last = int(place[burst.last])
        if burst.begins:
            cost = Cost.CPU if burst.asleep else Cost.FIXED
            hand_over = on_main[burst.silent, Point.HAND_OVER]
            _put_after(points, first, hand_over, points.time[first] - burst.silent, cost)
        if not burst.asleep:
            continue
        resume = on_main[burst.back, Point.RESUME]
        latest = last
        if resume in awaited:
            latest = max(last, awaited[resume], key=lambda row: points.time[row])
            other = last if latest == awaited[resume] else awaited[resume]
            points.also_after.append((resume, other, int(burst.back - points.time[other])))
        awaited[resume] = latest
        _put_after(points, resume, latest, burst.back - points.time[latest], Cost.CPU)


def _put_after(points: HostPoints, point: int, before: int, length: int, cost: Cost) -> None:
    """Chain a point to one of another thread, with all the time between them of one class."""
    points.chain[point] = before
    points.between[point] = 0
    points.between[point, cost] = length
