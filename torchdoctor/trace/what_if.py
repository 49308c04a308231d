"""How long a step of a trace would take without each of its costs, by replaying the trace.

A replay is a model: host time, device time and waits of unknown cause are taken from the trace,
everything else follows from what waits for what. docs/decisions/upper-bounds.md has the rules.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Table, Trace
from torchdoctor.trace.dependencies import Dependencies, dependencies
from torchdoctor.trace.device_order import NEVER, UNEXPLAINED_NS, Cost
from torchdoctor.trace.timeline import Steps, Timeline
from torchdoctor.words.intervals import Ints
from torchdoctor.words.traced import BranchReplay, WhatIf

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
    takes, needs = graph.takes * keep[graph.takes_cost], graph.needs
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
    start, end = done[graph.step_start], done[graph.step_end].copy()
    belongs = graph.device_step >= 0
    np.maximum.at(end, graph.device_step[belongs], done[graph.device[belongs]])
    begin = start[0]
    if len(graph.in_the_way):
        begin = max(begin, done[graph.in_the_way].max())
    end = np.maximum.accumulate(np.maximum(end, begin))
    start = np.maximum(start, np.concatenate(([begin], end[:-1])))
    lengths: Times = end - start
    return lengths


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


def what_if(trace: Trace, timeline: Timeline, doubts: Sequence[str] = ()) -> WhatIf | None:
    """Replay typical steps as they are and without each cost; None: no length, or too large."""
    steps = timeline.steps
    if not steps.total:
        return None
    window = _typical_steps(trace, timeline)
    if window is None:
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
    told = set(COSTS) if trace.has_device else {"data_loader"}
    told -= set() if len(timeline.collectives) else {"communication"}
    prediction = WhatIf(
        steps=last - first + 1 if steps.known else 0,
        of_steps=len(steps) if steps.known else 0,
        measured_s=measured,
        replayed_s=replayed,
        explained_s=min(replayed, _seconds(replay(graph, delay=np.zeros(len(graph))))),
        own_delays=own_delays,
        branches={
            branch: _without(graph, cost, delay, replayed) if branch in told else None
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


def _doubts(timeline: Timeline, prediction: WhatIf) -> list[str]:
    doubts = []
    whole = "step" if timeline.steps.known else "trace"
    if not timeline.steps.known:
        doubts.append("Steps are unknown, so the whole trace was replayed, start-up included.")
    if not prediction.reproduced:
        off = abs(prediction.replayed_s / prediction.measured_s - 1)
        doubts.append(
            f"The replay is {off:.0%} off the measured {whole}: what-ifs are not believed."
        )
    elif prediction.own_delays:
        doubts.append(
            f"Usual launch delays do not reproduce the {whole}, so every device event was replayed "
            "with the delay that it had."
        )
    unexplained = 1 - prediction.explained_s / (prediction.replayed_s or 1.0)
    if prediction.replayed_s and unexplained > _UNEXPLAINED_SHARE:
        doubts.append(
            f"{unexplained:.0%} of the {whole} are waits of the device for something that the "
            "trace does not show (other ranks, other processes, lost events); what-ifs keep them."
        )
    return doubts
