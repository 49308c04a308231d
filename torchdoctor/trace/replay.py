"""Replays the steps of a trace, as they are or without one of their costs.

A replay is a model: host time, device time and waits of unknown cause are taken from the trace,
everything else follows from what waits for what. docs/decisions/what-if-replay.md has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.dependencies import NO_LAG, Dependencies
from torchdoctor.trace.device_order import FIXED, UNEXPLAINED_NS
from torchdoctor.trace.host_chain import CLASSES

Times = NDArray[np.float64]


class Delays(Enum):
    """How late device events start beyond what the graph explains."""

    NONE = "none"
    UNEXPLAINED = "unexplained"  # only waits too long to be chance; launches take the usual time
    MEASURED = "measured"  # each event as late as it was


def replay(
    graph: Dependencies,
    kept: Mapping[int, float] | None = None,
    delays: Delays = Delays.UNEXPLAINED,
) -> Times:
    """Length of each step in nanoseconds.

    Args:
        kept: share of each class of cost that stays, 0 to 1; classes not named stay whole.
    """
    keep = np.ones(CLASSES)
    for cost, share in (kept or {}).items():
        keep[cost] = share
    return _step_lengths(graph, _done_times(graph, keep, delays))


def _done_times(graph: Dependencies, keep: Times, delays: Delays) -> Times:
    """When each node is done: it begins after all that it needs."""
    takes = graph.takes * keep[graph.takes_cost]
    late = graph.delay
    if delays is not Delays.MEASURED:
        wanted = (late > UNEXPLAINED_NS) & (delays is Delays.UNEXPLAINED)
        late = np.where(wanted, late, 0)
    gone = keep == 0
    gone[FIXED] = False
    # A lag below zero runs within the device event that is waited for: it shrinks when that does.
    # (After a host point it is a device clock that runs ahead.)
    least = np.full(len(graph), float(NO_LAG))
    least[graph.device] = -takes[graph.device]
    after = np.maximum(graph.between @ keep, least[graph.chain])
    behind = np.maximum(graph.other_lag.astype(np.float64), least[graph.other])
    behind[graph.other_lag == NO_LAG] = NO_LAG
    behind[gone[graph.other_cost]] = NO_LAG
    more: dict[int, list[tuple[int, float]]] = {}
    for node, needed, lag, cost in graph.more:
        if not gone[cost]:
            more.setdefault(node, []).append((needed, max(float(lag), least[needed])))
    rows = zip(
        graph.chain.tolist(),
        after.tolist(),
        graph.other.tolist(),
        behind.tolist(),
        (takes + late).tolist(),
        strict=True,
    )
    done = [0.0] * len(graph)
    next(rows)  # the root is done at 0
    for node, (chain, lag, other, other_lag, length) in enumerate(rows, start=1):
        begin = done[chain] + lag
        alternative = done[other] + other_lag
        if alternative > begin:
            begin = alternative
        if node in more:
            for needed, further in more[node]:
                begin = max(begin, done[needed] + further)
        done[node] = begin + length
    return np.array(done)


def _step_lengths(graph: Dependencies, done: Times) -> Times:
    """The steps' borders as the timeline draws them: ended by the last device event of each."""
    start, end = done[graph.step_start], done[graph.step_end].copy()
    belongs = graph.device_step >= 0
    np.maximum.at(end, graph.device_step[belongs], done[graph.device[belongs]])
    begin = start[0]
    if len(graph.in_the_way):
        begin = max(begin, done[graph.in_the_way].max())
    end = np.maximum.accumulate(np.maximum(end, begin))
    start = np.maximum(start, np.concatenate(([begin], end[:-1])))
    return end - start
