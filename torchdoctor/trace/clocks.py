"""The clocks of several ranks, aligned on the collectives that they ran together.

A collective that everybody needs everybody's data for ends on all ranks within microseconds: the
usual difference of its ends is that of the clocks, that of its starts is what each rank waited.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from torchdoctor.trace.columns import Ints, Trace
from torchdoctor.trace.exchange import collective_calls
from torchdoctor.trace.threads import is_step, named
from torchdoctor.trace.timeline import HOST_COMMUNICATION, Timeline

# Broadcasts and point-to-point calls may end on one rank long before they do on another: they
# count where their ends turn out to lie together.
_TOGETHER = re.compile(r"all[-_]?(?:reduce|gather|to)|reduce[-_]?scatter", re.IGNORECASE)
_OFTEN = re.compile(r"sendrecv|send and receive", re.IGNORECASE)  # all-to-all is made of these
_FEWEST = 3
# How far ends may scatter around the usual difference: more, and these were not the same calls.
_SCATTER_NS, _SCATTER_SHARE = 20_000, 0.005  # of a step
# On the host a thread is woken when the data is there, on a busy machine milliseconds later.
_HOST_SCATTER_NS, _HOST_SCATTER_SHARE, _HOST_SCATTER_MOST = 2_000_000, 0.02, 0.1


@dataclass(frozen=True)
class Collectives:
    """Those of one rank in order of time: profiler step, kind with kernel and group, and times."""

    step: Ints
    name: list[str]
    start: Ints
    end: Ints
    base_us: float  # of the times, on the clock of its machine
    on_device: bool = True


@dataclass(frozen=True)
class Alignment:
    """One entry a rank, in the order given."""

    offset_s: list[float]  # how far its clock is ahead of the first rank's
    wait_s: list[float]  # per step, in collectives until the last rank came
    last_share: list[float]  # of the collectives, those that it came to last
    collectives: int
    exchange_s: float  # per step, in collectives after the last rank came
    scatter_s: float  # how far ends lie from the offset, the usual distance over all ranks
    on_device: bool = True


class Unaligned(Enum):
    """Why clocks could not be aligned."""

    TOO_FEW = "too few"  # collectives that all ranks ran alike, in steps that all recorded
    DIFFERENT_RUNS = "different runs"  # what looks like the same collectives did not end together


def collectives(trace: Trace, timeline: Timeline) -> Collectives:
    """Return the collectives of the known steps; none where steps are unknown."""
    number = _step_numbers(trace, timeline)
    if trace.has_device:
        calls = collective_calls(trace, timeline.steps)
        table = trace.device.where(calls.row)
        of = [trace.names[group] if group >= 0 else "" for group in table["group"].tolist()]
        kinds = [f"{kind} {group} " for kind, group in zip(calls.kind, of, strict=True)]
    else:
        table = trace.annotations
        on_host = np.flatnonzero(
            named(trace, table, lambda name: name.startswith(HOST_COMMUNICATION))
        )
        table = table.where(on_host[np.argsort(table.start[on_host], kind="stable")])
        kinds = [""] * len(table)
    kernels = [trace.names[name].partition("(")[0] for name in table.name]
    index = timeline.steps.index(table.start)
    rows = np.flatnonzero(index >= 0) if len(number) else np.zeros(0, dtype=np.int64)
    index = index[rows]
    epoch_ns = trace.metadata.get("baseTimeNanoseconds")
    epoch_us = epoch_ns / 1000 if isinstance(epoch_ns, int) else 0.0
    return Collectives(
        step=number[index] if len(index) else index,
        name=[kinds[row] + kernels[row] for row in rows],
        start=table.start[rows],
        end=table.end[rows],
        base_us=trace.base_us + epoch_us,
        on_device=trace.has_device,
    )


def _step_numbers(trace: Trace, timeline: Timeline) -> Ints:
    """Return the profiler's number of each step; empty where steps are unknown."""
    if not timeline.steps.known:
        return np.zeros(0, dtype=np.int64)
    numbers = {}
    for table in trace.ranges:
        marks = table.where(named(trace, table, is_step))
        for start, name in zip(marks.start.tolist(), marks.name.tolist(), strict=True):
            digits = trace.names[name].rpartition("#")[2]
            numbers[start] = int(digits) if digits.isdigit() else -1
    starts = timeline.steps.host_start.tolist()
    return np.array([numbers.get(start, -1) for start in starts], dtype=np.int64)


def align(ranks: Sequence[Collectives], step_s: float) -> Alignment | Unaligned:
    """Align the ranks' clocks; the scatter of the ends is judged against the length of a step."""
    matched = _matched(ranks) if len(ranks) > 1 else []
    if len(matched) < _FEWEST:
        return Unaligned.TOO_FEW
    rows = np.array(matched).T  # ranks, collectives
    names = [ranks[0].name[row] for row in rows[0].tolist()]
    sure = np.array([_TOGETHER.search(name) is not None for name in names])
    anchors = sure
    if sure.sum() < _FEWEST:
        anchors = sure | np.array([_OFTEN.search(name) is not None for name in names])
    if anchors.sum() < _FEWEST:
        return Unaligned.TOO_FEW
    base_ns = np.array([(rank.base_us - ranks[0].base_us) * 1000 for rank in ranks])[:, None]
    start = np.array([rank.start[row] for rank, row in zip(ranks, rows, strict=True)]) + base_ns
    end = np.array([rank.end[row] for rank, row in zip(ranks, rows, strict=True)]) + base_ns
    apart = end - end[0]
    offset = np.median(apart[:, anchors], axis=1)
    off = np.abs(apart - offset[:, None])
    scatter = np.median(off[:, anchors], axis=1).max()
    on_device, step_ns = all(rank.on_device for rank in ranks), step_s * 1e9
    most = _HOST_SCATTER_NS + _HOST_SCATTER_SHARE * step_ns
    most = min(most, _HOST_SCATTER_MOST * step_ns)
    most = _SCATTER_NS + _SCATTER_SHARE * step_ns if on_device else most
    if scatter > most:
        return Unaligned.DIFFERENT_RUNS if sure.sum() >= _FEWEST else Unaligned.TOO_FEW
    kept = sure | (off.max(axis=0) <= most)
    start, end, rows = start[:, kept], end[:, kept], rows[:, kept]
    arrived = start - offset[:, None]
    wait = arrived.max(axis=0) - arrived
    steps = len(np.unique(ranks[0].step[rows[0]]))
    last = np.bincount(arrived.argmax(axis=0), minlength=len(ranks))
    return Alignment(
        offset_s=(offset / 1e9).tolist(),
        wait_s=(wait.sum(axis=1) / steps / 1e9).tolist(),
        last_share=(last / rows.shape[1]).tolist(),
        collectives=rows.shape[1],
        exchange_s=float((end - start).min(axis=0).sum()) / steps / 1e9,
        scatter_s=float(scatter) / 1e9,
        on_device=on_device,
    )


def _matched(ranks: Sequence[Collectives]) -> list[tuple[int, ...]]:
    """Return the rows of the same collective on every rank: the n-th of a name in a step."""
    matched: list[tuple[int, ...]] = []
    by_name: list[dict[tuple[int, str], list[int]]] = []
    for rank in ranks:
        rows: dict[tuple[int, str], list[int]] = {}
        for row, key in enumerate(zip(rank.step.tolist(), rank.name, strict=True)):
            rows.setdefault(key, []).append(row)
        by_name.append(rows)
    for key in sorted(set.intersection(*map(set, by_name))):
        own = [rows[key] for rows in by_name]
        if key[0] >= 0 and len({len(rows) for rows in own}) == 1:
            matched += zip(*own, strict=True)
    return matched
