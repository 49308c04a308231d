"""The clocks of several ranks, aligned on the collectives that they ran together.

A collective that everybody needs everybody's data for ends on all ranks within microseconds, so
the usual difference between its ends is the difference between the clocks. What each rank then
waited for the last one to arrive is the difference between its starts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.recording.kernel_names import is_communication
from torchdoctor.recording.timeline import Timeline
from torchdoctor.recording.trace_categories import KERNEL
from torchdoctor.recording.trace_columns import Ints, Trace
from torchdoctor.recording.trace_threads import is_step, named

# Broadcasts and point-to-point calls may end on one rank long before they do on another.
_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
_FEWEST = 3
# How far ends may scatter around the usual difference: more, and these were not the same calls.
_SCATTER_NS, _SCATTER_SHARE = 20_000, 0.005  # of a step


@dataclass(frozen=True)
class Collectives:
    """Those of one rank in order of time: profiler step, kernel, and times in nanoseconds."""

    step: Ints
    kernel: list[str]
    start: Ints
    end: Ints
    base_us: float  # of the times, on the clock of its machine


@dataclass(frozen=True)
class Alignment:
    """One entry a rank, in the order given.

    `offset_s`: how far its clock is ahead of the first rank's. `wait_s`: per step, how long it
    waited in collectives until the last rank came. `last_share`: of the collectives, those that it
    came to last. `scatter_s`: how far ends lie from the offset, the usual distance over all ranks.
    """

    offset_s: list[float]
    wait_s: list[float]
    last_share: list[float]
    collectives: int
    scatter_s: float


def collectives(trace: Trace, timeline: Timeline) -> Collectives:
    """The collective kernels of the known steps; none where steps are unknown."""
    wanted = np.array([_is_collective(name) for name in trace.names], dtype=bool)
    device = trace.device
    rows = np.flatnonzero((device["kind"] == KERNEL) & named(trace, device, wanted))
    rows = rows[np.argsort(device.start[rows], kind="stable")]
    number = _step_numbers(trace, timeline)
    index = timeline.steps.index(device.start[rows])
    rows, index = rows[index >= 0], index[index >= 0]
    if not len(number):
        rows, index = rows[:0], index[:0]
    epoch_ns = trace.metadata.get("baseTimeNanoseconds")
    epoch_us = epoch_ns / 1000 if isinstance(epoch_ns, int) else 0.0
    return Collectives(
        step=number[index] if len(index) else index,
        kernel=[trace.names[name].partition("(")[0] for name in device.name[rows]],
        start=device.start[rows],
        end=device.end[rows],
        base_us=trace.base_us + epoch_us,
    )


def _is_collective(name: str) -> bool:
    return is_communication(name) and _TOGETHER.search(name) is not None


def _step_numbers(trace: Trace, timeline: Timeline) -> Ints:
    """The profiler's number of each step; empty where steps are unknown."""
    if not timeline.steps.known:
        return np.zeros(0, dtype=np.int64)
    wanted = np.array([is_step(name) for name in trace.names], dtype=bool)
    numbers = {}
    for table in (trace.annotations, trace.operators):
        marks = table.where(named(trace, table, wanted))
        for start, name in zip(marks.start.tolist(), marks.name.tolist(), strict=True):
            digits = trace.names[name].rpartition("#")[2]
            numbers[start] = int(digits) if digits.isdigit() else -1
    starts = timeline.steps.host_start.tolist()
    return np.array([numbers.get(start, -1) for start in starts], dtype=np.int64)


def align(ranks: Sequence[Collectives], step_s: float) -> Alignment | None:
    """Align the ranks' clocks; None: too few collectives in common, or they do not fit together.

    Args:
        step_s: how long a step takes, against which the ends' scatter is judged.
    """
    matched = _matched(ranks) if len(ranks) > 1 else []
    if len(matched) < _FEWEST:
        return None
    rows = np.array(matched).T  # ranks, collectives
    base_ns = np.array([(one.base_us - ranks[0].base_us) * 1000 for one in ranks])[:, None]
    start = np.array([one.start[row] for one, row in zip(ranks, rows, strict=True)]) + base_ns
    end = np.array([one.end[row] for one, row in zip(ranks, rows, strict=True)]) + base_ns
    apart = end - end[0]
    offset = np.median(apart, axis=1)
    scatter = np.median(np.abs(apart - offset[:, None]), axis=1).max()
    if scatter > _SCATTER_NS + _SCATTER_SHARE * step_s * 1e9:
        return None
    arrived = start - offset[:, None]
    wait = arrived.max(axis=0) - arrived
    steps = len(np.unique(ranks[0].step[rows[0]]))
    last = np.bincount(arrived.argmax(axis=0), minlength=len(ranks))
    return Alignment(
        offset_s=(offset / 1e9).tolist(),
        wait_s=(wait.sum(axis=1) / steps / 1e9).tolist(),
        last_share=(last / rows.shape[1]).tolist(),
        collectives=rows.shape[1],
        scatter_s=float(scatter) / 1e9,
    )


def _matched(ranks: Sequence[Collectives]) -> list[tuple[int, ...]]:
    """Rows of the same collective on every rank: the n-th of a step that all ran alike."""
    found: list[tuple[int, ...]] = []
    for number in sorted(set.intersection(*(set(one.step.tolist()) for one in ranks))):
        if number < 0:
            continue
        rows = [np.flatnonzero(one.step == number).tolist() for one in ranks]
        kernels = [[one.kernel[row] for row in own] for one, own in zip(ranks, rows, strict=True)]
        if all(each == kernels[0] for each in kernels):
            found += zip(*rows, strict=True)
    return found
