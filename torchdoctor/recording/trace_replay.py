"""Replays the steps of a trace, as they are or without one of their costs.

A replay is a model: host time, device time and waits of unknown cause are taken from the trace,
everything else follows from what waits for what. docs/decisions/what-if-replay.md has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from torchdoctor.recording.trace_dependencies import ROOT, Dependencies
from torchdoctor.recording.trace_device_order import FIXED
from torchdoctor.recording.trace_host_chain import CLASSES

_NONE = -float(1 << 60)


def replay(
    graph: Dependencies, kept: Mapping[int, float] | None = None, unexplained: bool = True
) -> NDArray[np.float64]:
    """Length of each step in nanoseconds.

    Args:
        kept: share of each class of cost that stays, 0 to 1; all of those that are not named.
        unexplained: whether waits of unknown cause stay.
    """
    keep = np.ones(CLASSES)
    for cost, share in (kept or {}).items():
        keep[cost] = share
    takes = graph.takes * keep[graph.takes_cost]
    done = _done_times(graph, keep, takes, unexplained)
    return _step_lengths(graph, done)


def _done_times(
    graph: Dependencies, keep: NDArray[np.float64], takes: NDArray[np.float64], unexplained: bool
) -> NDArray[np.float64]:
    """When each node is done: every node after all that it needs."""
    # A lag below zero overlaps with what is waited for, so it cannot be longer than that takes.
    between = np.maximum(graph.between @ keep, -takes[graph.chain])
    between = np.where(graph.between[:, FIXED] < _NONE / 2, _NONE, between)
    late = graph.unexplained * float(unexplained)
    gone = keep == 0
    gone[FIXED] = False
    lag = np.maximum(graph.other_lag.astype(float), np.where(graph.other_lag < _NONE / 2, _NONE, -takes[graph.other]))
    lag[gone[graph.other_cost]] = _NONE
    more: dict[int, list[tuple[int, float]]] = {}
    for node, needed, behind, cost in graph.more:
        if not gone[cost]:
            more.setdefault(node, []).append((needed, max(float(behind), -takes[needed])))
    done = [0.0] * len(graph)
    rows = zip(
        graph.chain.tolist(),
        between.tolist(),
        graph.other.tolist(),
        lag.tolist(),
        (takes + late).tolist(),
        strict=True,
    )
    next(rows)  # the root is done at 0
    for node, (chain, after, other, behind, length) in enumerate(rows, start=1):
        begin = done[chain] + after
        alternative = done[other] + behind
        if alternative > begin:
            begin = alternative
        if node in more:
            for needed, lagging in more[node]:
                begin = max(begin, done[needed] + lagging)
        done[node] = begin + length
    return np.array(done)


def _step_lengths(graph: Dependencies, done: NDArray[np.float64]) -> NDArray[np.float64]:
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
