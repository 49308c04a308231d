"""What waits for what in some steps of a trace: host points and device events as one graph.

Every delay in it counts from what came before, never from the clock, so that time taken away
somewhere moves all that follows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Table, Trace
from torchdoctor.trace.device_order import (
    FIXED,
    DeviceEvents,
    cross_stream_waits,
    device_events,
    start_later_by,
)
from torchdoctor.trace.host_chain import (
    CLASSES,
    LAUNCH,
    STEP_END,
    STEP_START,
    WAIT_END,
    HostPoints,
    HostWaits,
    host_points,
    host_waits,
    stuck_ns,
)
from torchdoctor.trace.timeline import Timeline
from torchdoctor.words.intervals import Ints

ROOT = 0
NO_LAG = -(1 << 60)  # no dependency
_DEVICE_RANK = 1  # at one moment: what the host does, device events, ends of waits


@dataclass
class Dependencies:
    """A node is a host point or a device event, in an order in which all it needs comes before.

    A node is done `takes` after the last of: `chain` done and `between` gone by; `other` done and
    `other_lag` gone by; each of `more` likewise. Times are nanoseconds; node 0 is done at 0.
    """

    chain: Ints
    between: NDArray[np.float64]  # (nodes, classes of cost)
    other: Ints
    other_lag: Ints
    other_cost: Ints  # a dependency that goes when this class is taken away; FIXED: never
    takes: NDArray[np.float64]
    takes_cost: Ints
    delay: Ints  # by how much a device event started later than all this explains
    more: list[tuple[int, int, int, int]]  # node, needed node, lag, class like `other_cost`
    step_start: Ints  # nodes, one per step
    step_end: Ints
    device: Ints  # nodes of device events
    device_step: Ints  # step that each of those belongs to, -1: none
    in_the_way: Ints  # nodes of work launched before, that delays the first step's start
    broken: int  # dependencies that the measured times contradict; left out
    stuck_ns: int = 0  # in synchronisation or copies, with nothing running to wait for

    def __len__(self) -> int:
        return len(self.chain)

    def costs(self, cost: int) -> bool:
        """Return True if anything belongs to this class of cost."""
        return bool(
            self.between[:, cost].any()
            or (self.takes_cost == cost).any()
            or (self.other_cost == cost).any()
        )


def dependencies(trace: Trace, timeline: Timeline, first: int, last: int) -> Dependencies:
    """Return the graph of steps `first` to `last`, both included."""
    trace = _cut(trace, timeline, first, last)
    events = device_events(trace, timeline, first, last)
    across = cross_stream_waits(trace, events)
    events = replace(events, delay=start_later_by(events, *across))
    steps = timeline.steps
    runtime = trace.runtime
    calls = np.flatnonzero(
        (runtime.start >= steps.host_start[first]) & (runtime.start < steps.host_end[last])
    )
    waits = host_waits(trace, events, calls)
    points = host_points(trace, timeline, (first, last), events, waits)
    graph = _Assembly(trace, timeline, first, points, events, waits, across).result()
    return replace(graph, stuck_ns=stuck_ns(trace, events, calls, waits))


def _cut(trace: Trace, timeline: Timeline, first: int, last: int) -> Trace:
    """Return the part of a trace that these steps need, so that a long trace costs no more."""
    begin, end = timeline.steps.host_start[first], timeline.steps.end[last]

    def around(table: Table) -> NDArray[np.bool_]:
        overlaps: NDArray[np.bool_] = (table.end >= begin) & (table.start <= end)
        return overlaps

    device = trace.device.where(around(trace.device))
    runtime = trace.runtime
    inside = around(runtime)
    if len(device):
        known = np.isin(device["correlation"], runtime["correlation"][inside])
        earlier = np.isin(runtime["correlation"], device["correlation"][~known])
        inside |= earlier & (runtime.start < begin)
    return replace(
        trace,
        operators=trace.operators.where(around(trace.operators)),
        annotations=trace.annotations.where(around(trace.annotations)),
        runtime=runtime.where(inside),
        device=device,
    )


@dataclass
class _Assembly:
    """Puts points and events into one order: host points first, then events, before sorting."""

    trace: Trace
    timeline: Timeline
    first: int
    points: HostPoints
    events: DeviceEvents
    waits: HostWaits
    across: tuple[Ints, Ints]

    def result(self) -> Dependencies:
        points, events = self.points, self.events
        count = len(points)
        base = int(self.timeline.steps.host_start[self.first])
        time = np.concatenate([points.time, events.start])
        rank = np.concatenate([self._point_ranks(), np.full(len(events), _DEVICE_RANK)])
        # By rounding an event may start before its launch, or before the one ahead of it.
        key = np.maximum(time, np.concatenate([points.time, events.submitted]))
        for first, last in zip(events.stream_first[:-1], events.stream_first[1:], strict=True):
            part = slice(count + int(first), count + int(last))
            key[part] = np.maximum.accumulate(key[part])
        root_first = np.ones(len(key), dtype=np.int64)
        root_first[self._root()] = 0
        order = np.lexsort((np.arange(len(key)), rank, key, root_first))
        self.place = np.empty(len(order), dtype=np.int64)
        self.place[order] = np.arange(len(order))
        self.between = np.zeros((len(order), CLASSES))
        self.takes = np.zeros(len(order))
        self.takes_cost = np.full(len(order), FIXED)
        self.delay = np.zeros(len(order), dtype=np.int64)
        self.chain = np.full(len(order), -1)
        self.needs: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._host(base)
        self._device(count, base)
        self._waits(count)
        return self._ordered(order, count)

    def _point_ranks(self) -> Ints:
        """Return 0 for a point, 2 from the end of a wait on at the same moment of its thread."""
        points = self.points
        same = (np.diff(points.thread) == 0) & (np.diff(points.time) == 0)
        moment = np.concatenate(([0], np.cumsum(~same)))
        return np.maximum.accumulate(moment * 4 + np.where(points.kind == WAIT_END, 2, 0)) % 4

    def _root(self) -> int:
        return int(np.flatnonzero((self.points.kind == STEP_START) & (self.points.ref == 0))[0])

    def _host(self, base: int) -> None:
        points, count = self.points, len(self.points)
        self.chain[:count] = points.chain
        self.between[:count] = points.between
        # What begins on a thread of its own begins at its time after the first step's begin.
        alone = points.chain < 0
        self.between[:count][alone] = 0
        self.between[:count, FIXED][alone] = np.maximum(points.time - base, 0)[alone]
        for point, needed, lag in points.also_after:
            self.needs[point].append((needed, lag, FIXED))

    def _device(self, count: int, base: int) -> None:
        events, root = self.events, self._root()
        rows = np.arange(count, count + len(events))
        previous = events.previous
        left = np.maximum(events.start, np.where(events.earlier, base, events.start))
        self.takes[rows] = events.end - left
        self.takes_cost[rows] = events.cost
        self.chain[rows] = np.where(previous >= 0, previous + count, root)
        from_root = np.where(events.call >= 0, NO_LAG, np.maximum(events.start - base, 0))
        self.between[rows, FIXED] = np.where(previous >= 0, events.gap, from_root)
        self.delay[rows] = np.where(events.earlier, 0, events.delay)
        is_launch = self.points.kind == LAUNCH
        launch = dict(
            zip(
                self.points.ref[is_launch].tolist(), np.flatnonzero(is_launch).tolist(), strict=True
            )
        )
        for event in np.flatnonzero(events.call >= 0).tolist():
            self.needs[count + event].append(
                (launch[int(events.call[event])], int(events.latency[event]), FIXED)
            )
        for event, awaited in zip(*(side.tolist() for side in self.across), strict=True):
            self.needs[count + event].append((count + awaited, 0, FIXED))

    def _waits(self, count: int) -> None:
        points, events, waits = self.points, self.events, self.waits
        is_end = points.kind == WAIT_END
        end_of = dict(
            zip(points.ref[is_end].tolist(), np.flatnonzero(is_end).tolist(), strict=True)
        )
        awaited: dict[int, int] = {}
        for call, event, cost in zip(
            waits.call.tolist(), waits.event.tolist(), waits.cost.tolist(), strict=True
        ):
            point = end_of[call]
            lag = min(0, int(points.time[point] - events.end[event]))
            self.needs[point].append((count + event, lag, cost))
            done = int(events.end[event]) + lag
            awaited[point] = max(awaited.get(point, done), done)
            self.takes_cost[point] = cost
        for point, done in awaited.items():
            before = max(done, int(points.time[points.chain[point]]))
            self.takes[point] = max(0, int(points.time[point]) - before)

    def _ordered(self, order: Ints, count: int) -> Dependencies:
        place, size = self.place, len(order)
        chain = np.where(self.chain >= 0, place[self.chain], ROOT)[order]
        other = np.zeros(size, dtype=np.int64)
        lag = np.full(size, NO_LAG)
        cost = np.full(size, FIXED)
        more = []
        broken = 0
        for node, needs in self.needs.items():
            at = int(place[node])
            for number, (needed, late, gone_with) in enumerate(needs):
                source = int(place[needed])
                if source >= at:
                    broken += 1
                elif number == 0:
                    other[at], lag[at], cost[at] = source, late, gone_with
                else:
                    more.append((at, source, late, gone_with))
        wrong = chain >= np.arange(size)
        wrong[ROOT] = False
        broken += int(wrong.sum())
        chain[wrong] = ROOT
        points, events = self.points, self.events
        steps = [place[np.flatnonzero(points.kind == kind)] for kind in (STEP_START, STEP_END)]
        device = place[count:]
        in_the_way = events.earlier.copy()
        if self.first == 0 and (events.step == 0).any():
            in_the_way = (events.step < 0) & (events.end < events.start[events.step == 0].min())
        return Dependencies(
            chain=chain,
            between=self.between[order],
            other=other,
            other_lag=lag,
            other_cost=cost,
            takes=self.takes[order],
            takes_cost=self.takes_cost[order],
            delay=self.delay[order],
            more=more,
            step_start=steps[0],
            step_end=steps[1],
            device=device,
            device_step=events.step,
            in_the_way=device[in_the_way],
            broken=broken,
        )
