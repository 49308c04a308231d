"""How long a step of a trace would take without each of its costs, by replaying the trace.

A replay is a model: host time, device time and waits of unknown cause are taken from the trace,
everything else follows from what waits for what. docs/decisions/upper-bounds.md has the rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.schema.intervals import Ints
from torchdoctor.schema.traced import BranchReplay, WhatIf
from torchdoctor.trace.columns import Mask, Table, Trace
from torchdoctor.trace.device_order import (
    NEVER,
    UNEXPLAINED_NS,
    Cost,
    DeviceEvents,
    cross_stream_waits,
    device_events,
    start_later_by,
    too_many_pairs,
)
from torchdoctor.trace.host_points import HostPoints, Point, host_points
from torchdoctor.trace.host_waits import HostWaits, host_waits
from torchdoctor.trace.timeline import Steps, Timeline

ROOT = 0
COSTS = {
    "data_loader": Cost.LOADER,
    "memcpy": Cost.COPY,
    "communication": Cost.COMMUNICATION,
    "gpu": Cost.GPU,
    "cpu": Cost.CPU,
    "runtime": Cost.RUNTIME,
}
# A replay takes well under a second up to here: device events, and host events by a tenth.
_EVENTS = 25_000
_EVENTS_OF_ONE_STEP = 250_000  # a single step with more is not replayed
_HOST_EVENT = 0.1
_USUAL_DELAYS_WITHIN = 0.015  # off by more: device events are replayed with their own delays
_UNEXPLAINED_SHARE = 0.05  # of the step, from where on it is said


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
    `needs`. Times are nanoseconds; node 0 is done at 0. Every delay counts from what came before,
    never from the clock, so that time taken away somewhere moves all that follows.
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
    steps = timeline.steps
    runtime = trace.runtime
    begin = int(steps.host_start[first])
    calls = np.flatnonzero((runtime.start >= begin) & (runtime.start < steps.host_end[last]))
    waits = host_waits(trace, events, calls)
    points = host_points(trace, timeline, (first, last), events, waits)
    count = len(points)
    size = len(points) + len(events)
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

    device = trace.device.where(around(trace.device))
    runtime = trace.runtime
    inside = around(runtime)
    if len(device):
        launched_inside = np.isin(device["correlation"], runtime["correlation"][inside])
        earlier = np.isin(runtime["correlation"], device["correlation"][~launched_inside])
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
    count = len(points)
    launched = np.flatnonzero(events.call >= 0)
    launches = points.of(Point.LAUNCH, events.call[launched])
    ends = points.of(Point.WAIT_END, waits.call)
    early = np.minimum(0, points.time[ends] - events.end[waits.event])
    also, after, lag = np.array(points.also_after, dtype=np.int64).reshape(-1, 3).T
    fixed = np.full(len(also) + len(launched) + len(across[0]), Cost.FIXED)
    lags_by_kind = (lag, events.latency[launched], np.zeros(len(across[0]), np.int64), early)
    node = place[np.concatenate([also, count + launched, count + across[0], ends])]
    needed = place[np.concatenate([after, launches, count + across[1], count + waits.event])]
    lags = np.concatenate(lags_by_kind)
    costs = np.concatenate([fixed, waits.cost])
    rows = np.argsort(node, kind="stable")
    rows = rows[needed[rows] < node[rows]]
    return Needs(node=node[rows], needed=needed[rows], lag=lags[rows], cost=costs[rows])


Times = NDArray[np.float64]


def replay(
    graph: Dependencies, kept: Mapping[Cost, float] | None = None, delay: Times | None = None
) -> Times:
    """Return the length of each step in ns if these shares of the classes of cost are `kept`.

    `delay`: by how much later than explained each node ends; None: waits too long to be chance.
    """
    keep = np.ones(len(Cost))
    for cost, share in (kept or {}).items():
        keep[cost] = share
    return _step_lengths(graph, _done_times(graph, keep, _waits(graph) if delay is None else delay))


def _waits(graph: Dependencies) -> Times:
    """Return the delays that are too long to be chance; launches take the usual time."""
    return np.where(graph.delay > UNEXPLAINED_NS, graph.delay, 0.0)


def _done_times(graph: Dependencies, keep: Times, delay: Times) -> Times:
    """Return when each node is done: it begins after all that it needs."""
    takes = graph.takes * keep[graph.takes_cost]
    needs = graph.needs
    gone = keep == 0
    gone[Cost.FIXED] = False
    # A lag below zero runs within the device event that is waited for: it shrinks when that does.
    # (After a host point it is a device clock that runs ahead.)
    least = np.full(len(graph), float(NEVER))
    least[graph.device] = -takes[graph.device]
    after = np.maximum(graph.between @ keep, least[graph.chain])
    left = ~gone[needs.cost]
    lag = np.maximum(needs.lag, least[needs.needed])[left]
    needed = list(zip(needs.needed[left].tolist(), lag.tolist(), strict=True))
    ends = np.searchsorted(needs.node[left], np.arange(len(graph)), side="right").tolist()
    rows = zip(graph.chain.tolist(), after.tolist(), (takes + delay).tolist(), ends, strict=True)
    next(rows)  # the root is done at 0
    done = [0.0] * len(graph)
    first = 0
    for node, (chain, wait, length, last) in enumerate(rows, start=1):
        begin = done[chain] + wait
        while first < last:
            before, further = needed[first]
            alternative = done[before] + further
            if alternative > begin:
                begin = alternative
            first += 1
        done[node] = begin + length
    return np.array(done)


def _step_lengths(graph: Dependencies, done: Times) -> Times:
    """Return the steps' lengths as the timeline has them: the last device event ends each."""
    start = done[graph.step_start]
    end = done[graph.step_end].copy()
    belongs = graph.device_step >= 0
    np.maximum.at(end, graph.device_step[belongs], done[graph.device[belongs]])
    begin = start[0]
    if len(graph.in_the_way):
        begin = max(begin, done[graph.in_the_way].max())
    end = np.maximum.accumulate(np.maximum(end, begin))
    start = np.maximum(start, np.concatenate(([begin], end[:-1])))
    lengths: Times = end - start
    return lengths


def what_if(trace: Trace, timeline: Timeline, doubts: Sequence[Evidence] = ()) -> WhatIf | None:
    """Replay typical steps as they are and without each cost; None: no length, or too large."""
    steps = timeline.steps
    if not steps.total:
        return None
    window = _typical_steps(trace, timeline)
    if window is None or too_many_pairs(trace):
        return None
    first, last = window
    graph = dependencies(trace, timeline, first, last)
    measured = _seconds(steps.end[first : last + 1] - steps.start[first : last + 1])
    delay = _waits(graph)
    replayed = _seconds(replay(graph))
    own_delays = abs(replayed - measured) > _USUAL_DELAYS_WITHIN * measured
    if own_delays:
        delay = graph.delay.astype(np.float64)
        replayed = _seconds(replay(graph, delay=delay))
    # Without a GPU all but the loader is the CPU's, and nothing would be left.
    predicted_branches = set(COSTS) if trace.has_device else {"data_loader"}
    predicted_branches -= set() if len(timeline.collectives) else {"communication"}
    prediction = WhatIf(
        steps=last - first + 1 if steps.known else 0,
        of_steps=len(steps) if steps.known else 0,
        measured_s=measured,
        replayed_s=replayed,
        explained_s=min(replayed, _seconds(replay(graph, delay=np.zeros(len(graph))))),
        own_delays=own_delays,
        branches={
            branch: _without(graph, cost, delay, replayed) if branch in predicted_branches else None
            for branch, cost in COSTS.items()
        },
    )
    prediction.doubts.extend([*_doubts(timeline, prediction), *doubts])
    return prediction


def _seconds(lengths: np.ndarray) -> float:
    return float(lengths.mean()) / 1e9


def _typical_steps(trace: Trace, timeline: Timeline) -> tuple[int, int] | None:
    """Return as many steps in a row as replay fast, with a mean close to that of all."""
    steps = timeline.steps
    events = _begun_in(trace.device, steps) + _HOST_EVENT * (
        _begun_in(trace.operators, steps) + _begun_in(trace.runtime, steps)
    )
    count = len(steps)
    if events.sum() <= _EVENTS:
        return 0, count - 1
    run = min(count, max(1, int(_EVENTS / max(float(events.mean()), 1.0))))
    before = np.concatenate(([0], np.cumsum(steps.end - steps.start)))
    lengths = (before[run:] - before[:-run]) / run
    size = np.concatenate(([0.0], np.cumsum(events)))
    affordable = size[run:] - size[:-run] <= (_EVENTS_OF_ONE_STEP if run == 1 else 2 * _EVENTS)
    if not affordable.any():
        return None
    distance = np.where(affordable, np.abs(lengths - steps.total / count), np.inf)
    first = int(distance.argmin())
    return first, first + run - 1


def _begun_in(table: Table, steps: Steps) -> Ints:
    step = np.searchsorted(steps.host_start, table.start, side="right")
    return np.bincount(step, minlength=len(steps) + 1)[1:]


def _without(graph: Dependencies, cost: Cost, delay: Times, replayed: float) -> BranchReplay:
    if not graph.costs(cost):
        return BranchReplay(step_s=replayed, lowest_s=replayed)
    # Without the work that delays its start the first step may count from earlier, and be longer.
    step = min(replayed, _seconds(replay(graph, {cost: 0.0}, delay)))
    lowest = min(step, _seconds(replay(graph, {cost: 0.0}, np.zeros(len(graph)))))
    return BranchReplay(step_s=step, lowest_s=lowest)


def _doubts(timeline: Timeline, prediction: WhatIf) -> list[Evidence]:
    doubts = []
    whole = "step" if timeline.steps.known else "trace"
    if not timeline.steps.known:
        doubts.append(fact("replayed-whole"))
    if not prediction.reproduced:
        off = abs(prediction.replayed_s / prediction.measured_s - 1)
        doubts.append(fact("replay-off", off=off, whole=whole))
    elif prediction.own_delays:
        doubts.append(fact("replayed-with-own-delays", whole=whole))
    unexplained = 1 - prediction.explained_s / (prediction.replayed_s or 1.0)
    if prediction.replayed_s and unexplained > _UNEXPLAINED_SHARE:
        doubts.append(fact("waits-unexplained", unexplained=unexplained, whole=whole))
    return doubts
