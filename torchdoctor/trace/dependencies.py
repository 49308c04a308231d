"""What waits for what in some steps of a trace: host points and device events as one graph.

Every delay in it counts from what came before, never from the clock, so that time taken away
somewhere moves all that follows.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Mask, Table, Trace
from torchdoctor.trace.device_order import (
    NEVER,
    Cost,
    DeviceEvents,
    cross_stream_waits,
    device_events,
    start_later_by,
)
from torchdoctor.trace.host_chain import HostPoints, HostWaits, Point, host_points, host_waits
from torchdoctor.trace.timeline import Timeline
from torchdoctor.words.intervals import Ints

ROOT = 0


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Dependencies in order of the node that needs another one done, and `lag` ns gone by."""

    node: Ints
    needed: Ints
    lag: Ints
    cost: Ints  # the dependency goes when this class is taken away; FIXED: never


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """A node is a host point or a device event, in an order in which all it needs comes before.

    A node is done `takes` after the last of: `chain` done and `between` gone by; all that it
    `needs`. Times are nanoseconds; node 0 is done at 0.
    """

    chain: Ints
    between: NDArray[np.float64]  # (nodes, classes of cost)
    needs: Needs
    takes: NDArray[np.float64]
    takes_cost: Ints
    delay: Ints  # by how much a device event started later than all this explains
    step_start: Ints  # nodes, one per step
    step_end: Ints
    device: Ints  # nodes of device events
    device_step: Ints  # step that each of those belongs to, -1: none
    in_the_way: Ints  # nodes of work launched before, that delays the first step's start

    def __len__(self) -> int:
        return len(self.chain)

    def costs(self, cost: Cost) -> bool:
        """Return True if anything belongs to this class of cost."""
        of_class = (self.between[:, cost] != 0, self.takes_cost == cost, self.needs.cost == cost)
        return any(bool(rows.any()) for rows in of_class)


def dependencies(trace: Trace, timeline: Timeline, first: int, last: int) -> Dependencies:
    """Return the graph of steps `first` to `last`, both included."""
    trace = _cut(trace, timeline, first, last)
    events = device_events(trace, timeline, first, last)
    across = cross_stream_waits(trace, events)
    delay = start_later_by(events, *across)
    steps, runtime = timeline.steps, trace.runtime
    begin = int(steps.host_start[first])
    calls = np.flatnonzero((runtime.start >= begin) & (runtime.start < steps.host_end[last]))
    waits = host_waits(trace, events, calls)
    points = host_points(trace, timeline, (first, last), events, waits)
    count, size = len(points), len(points) + len(events)
    root = int(np.flatnonzero((points.kind == Point.STEP_START) & (points.ref == 0))[0])
    order = _order(points, events, root)
    place = np.empty(size, dtype=np.int64)
    place[order] = np.arange(size)

    previous = events.previous
    chain = np.concatenate([points.chain, np.where(previous >= 0, previous + count, root)])
    chain = np.where(chain >= 0, place[chain], ROOT)[order]
    chain[chain >= np.arange(size)] = ROOT  # the measured times contradict it
    late = np.concatenate([np.zeros(count, np.int64), np.where(events.earlier, 0, delay)])
    left = np.maximum(events.start, np.where(events.earlier, begin, events.start))
    ends, takes = _after_waits(points, events, waits)
    takes_cost = np.concatenate([np.full(count, Cost.FIXED), events.cost])
    takes_cost[ends] = waits.cost
    in_the_way = events.earlier
    if first == 0 and (events.step == 0).any():
        in_the_way = (events.step < 0) & (events.end < events.start[events.step == 0].min())
    return Dependencies(
        chain=chain,
        between=_between(points, events, begin)[order],
        needs=_needs(points, events, waits, across, place),
        takes=np.concatenate([takes, events.end - left]).astype(np.float64)[order],
        takes_cost=takes_cost[order],
        delay=late[order],
        step_start=place[np.flatnonzero(points.kind == Point.STEP_START)],
        step_end=place[np.flatnonzero(points.kind == Point.STEP_END)],
        device=place[count:],
        device_step=events.step,
        in_the_way=place[count:][in_the_way],
    )


def _cut(trace: Trace, timeline: Timeline, first: int, last: int) -> Trace:
    """Return the part of a trace that these steps need, so that a long trace costs no more."""
    begin, end = timeline.steps.host_start[first], timeline.steps.end[last]

    def around(table: Table) -> Mask:
        overlaps: Mask = (table.end >= begin) & (table.start <= end)
        return overlaps

    device, runtime = trace.device.where(around(trace.device)), trace.runtime
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


def _order(points: HostPoints, events: DeviceEvents, root: int) -> Ints:
    """Return points, then events, in an order of time in which a node comes after its needs."""
    # At one moment: points, device events, and points from the end of a wait of their thread on.
    same = (np.diff(points.thread) == 0) & (np.diff(points.time) == 0)
    moment = np.concatenate(([0], np.cumsum(~same)))
    ranks = np.maximum.accumulate(moment * 4 + np.where(points.kind == Point.WAIT_END, 2, 0)) % 4
    rank = np.concatenate([ranks, np.ones(len(events), np.int64)])
    # By rounding an event may start before its launch, or before the one ahead of it.
    begun = np.maximum(events.start, events.submitted)
    for first, last in events.streams():
        begun[first:last] = np.maximum.accumulate(begun[first:last])
    key = np.concatenate([points.time, begun])
    is_root = np.arange(len(key)) == root
    return np.lexsort((rank, key, ~is_root))


def _between(points: HostPoints, events: DeviceEvents, begin: int) -> NDArray[np.float64]:
    """Return the time from the node ahead in its chain to each node, by class of cost."""
    on_host = points.between.copy()
    alone = points.chain < 0  # what begins on a thread of its own: at its time after the first step
    on_host[alone] = 0
    on_host[alone, Cost.FIXED] = np.maximum(points.time - begin, 0)[alone]
    on_device = np.zeros((len(events), len(Cost)))
    from_root = np.where(events.call >= 0, NEVER, np.maximum(events.start - begin, 0))
    on_device[:, Cost.FIXED] = np.where(events.previous >= 0, events.gap, from_root)
    return np.concatenate([on_host, on_device])


def _after_waits(points: HostPoints, events: DeviceEvents, waits: HostWaits) -> tuple[Ints, Ints]:
    """Return the point that ends each wait, and how long each point takes after what it awaited."""
    ends = points.of(Point.WAIT_END, waits.call)
    done = np.full(len(points), NEVER)
    np.maximum.at(done, ends, np.minimum(events.end[waits.event], points.time[ends]))
    before = np.maximum(done, points.time[points.chain])
    return ends, np.where(done > NEVER, np.maximum(points.time - before, 0), 0)


def _needs(
    points: HostPoints,
    events: DeviceEvents,
    waits: HostWaits,
    across: tuple[Ints, Ints],
    place: Ints,
) -> Needs:
    """Return the dependencies beside the chains, without those that the times contradict."""
    count, launched = len(points), np.flatnonzero(events.call >= 0)
    launches = points.of(Point.LAUNCH, events.call[launched])
    ends = points.of(Point.WAIT_END, waits.call)
    early = np.minimum(0, points.time[ends] - events.end[waits.event])
    also, after, lag = np.array(points.also_after, dtype=np.int64).reshape(-1, 3).T
    fixed = np.full(len(also) + len(launched) + len(across[0]), Cost.FIXED)
    lags_by_kind = (lag, events.latency[launched], np.zeros(len(across[0]), np.int64), early)
    node = place[np.concatenate([also, count + launched, count + across[0], ends])]
    needed = place[np.concatenate([after, launches, count + across[1], count + waits.event])]
    lags, costs = np.concatenate(lags_by_kind), np.concatenate([fixed, waits.cost])
    rows = np.argsort(node, kind="stable")
    rows = rows[needed[rows] < node[rows]]
    return Needs(node=node[rows], needed=needed[rows], lag=lags[rows], cost=costs[rows])
