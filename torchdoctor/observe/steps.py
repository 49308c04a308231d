"""Regularities in a column of step times: warming up, cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchdoctor.observe.evaluation import (
    EXHAUSTED,
    Units,
    cut_units,
    evaluation_mask,
    evaluation_units,
    learning_rows,
)
from torchdoctor.observe.events import Events
from torchdoctor.observe.phases import (
    PHASES,
    before_forwards,
    is_open,
    phase_seconds,
    step_numbers,
    stretches,
    sum_by_step,
)
from torchdoctor.observe.step_finding import StepsFound, boundary_rows
from torchdoctor.probe import step_log
from torchdoctor.words import Boundary, StepStatistics
from torchdoctor.words.report import TWO_MODES

_TREND_STEPS = 10
# Mann-Kendall: of the 45 pairs among ten steps, this many more falling than rising; p = 0.01.
_TREND_SCORE = 27
_TREND_SIZE = 0.03  # and the fall must matter
_LONG_STEP = 3.0  # times the median
_LONGEST_SEARCH = 2000


def shows_slope(durations: np.ndarray) -> bool:
    """Return True if the last ten step times still fall, by a rank test that ignores spikes."""
    last = durations[-_TREND_STEPS:]
    if len(last) < _TREND_STEPS:
        return False
    earlier, later = np.triu_indices(_TREND_STEPS, k=1)
    score = float(np.sign(last[earlier] - last[later]).sum())
    half = _TREND_STEPS // 2
    before, after = float(np.median(last[:half])), float(np.median(last[half:]))
    return score >= _TREND_SCORE and after < before * (1.0 - _TREND_SIZE)


def settled_after(durations: np.ndarray) -> int | None:
    """Return the steps until the last ten showed no slope; None: fewer than ten steps."""
    for count in range(_TREND_STEPS, min(len(durations), _LONGEST_SEARCH) + 1):
        if not shows_slope(durations[:count]):
            return count
    return len(durations) if len(durations) >= _TREND_STEPS else None


def cycle_length(
    epoch_ends: np.ndarray, durations: np.ndarray, optimizer_steps_per_step: float = 1.0
) -> int | None:
    """Return the steps per regular cycle, where one was seen.

    That is the length of an epoch (by the steps in which the loader was exhausted), else the period
    of far longer steps (rollouts, evaluation every n steps), else that of gradient accumulation.
    """
    if len(epoch_ends) >= 2:
        return max(int(np.median(np.diff(epoch_ends))), 1)
    if len(epoch_ends) == 1:
        return max(int(epoch_ends[0]) + 1, 1)
    period = _period_of_long_steps(durations)
    if period is not None:
        return period
    if 0.0 < optimizer_steps_per_step < 0.9:
        return round(1.0 / optimizer_steps_per_step)
    return None


def _period_of_long_steps(durations: np.ndarray) -> int | None:
    if len(durations) < 4:
        return None
    long = np.flatnonzero(durations > _LONG_STEP * np.median(durations))
    gaps = np.diff(long)
    if len(gaps) < 2:
        return None
    # One step may be missing at the edge of an epoch that does not divide evenly.
    return int(np.median(gaps)) if gaps.max() - gaps.min() <= 1 and gaps.min() > 1 else None


def update_seconds(events: Events, edges: np.ndarray) -> list[float]:
    """Return the seconds per step of each optimizer's updates.

    Each counts from the last forward or backward within `step(closure)`, or from its beginning, to
    its end. A `step` within another's is no part of the outer one. LBFGS also computes between its
    closure's calls; no other implementation changes that.
    """
    steps = max(len(edges) - 1, 0)
    rows = events.at(step_log.OPTIMIZER_BEGIN, step_log.OPTIMIZER_END)
    if not steps or not len(rows):
        return []
    rows = rows[(rows >= edges[0]) & (rows <= edges[-1])]  # a boundary may be the end of a step
    learned = events.at(step_log.FORWARD_END, step_log.BACKWARD_END)
    totals: dict[int, int] = {}
    open_steps: list[list[int]] = []  # row it began at, ns of those within it
    for row in rows.tolist():
        if events.code[row] == step_log.OPTIMIZER_BEGIN:
            open_steps.append([row, 0])
            continue
        if not open_steps:
            continue  # it began before the window
        begin, within = open_steps.pop()
        last = int(np.searchsorted(learned, row)) - 1
        start = max(begin, int(learned[last])) if last >= 0 else begin
        if open_steps:
            open_steps[-1][1] += int(events.t_ns[row] - events.t_ns[begin])
        # What lies within may have come before the last backward, and then is not counted anyway.
        own = int(events.t_ns[row] - events.t_ns[start]) - within
        ident = int(events.ident[row])
        totals[ident] = totals.get(ident, 0) + max(own, 0)
    if not totals:
        return []
    return [totals.get(ident, 0) / 1e9 / steps for ident in range(max(totals) + 1)]


LEAST_WARMUP = 10
_ENOUGH_FOR_P99 = 50


def step_statistics(
    trainers: Sequence[Events],
    steps_found: StepsFound,
    warmup: int | None = None,
    window: int | None = None,
    program_ended: bool = False,
) -> StepStatistics:
    """Summarise the iterations of a measured window.

    Times are those of the main trainer, the first; samples of all trainers add up, as rates.
    Without `warmup` the step time has to settle first. Raise ValueError if the events hold fewer
    than two boundaries.
    """
    events = trainers[0]
    rows = boundary_rows(events, steps_found.boundary)
    if len(rows) < 2:
        raise ValueError(f"{len(rows)} boundaries make no iteration")
    durations = np.diff(events.t_ns[rows]) / 1e9
    settled = settled_after(durations)
    if warmup is None:
        warmup = _default_warmup(len(durations), settled)
    warmup = min(warmup, len(durations) - 1)
    edges = rows[warmup:] if window is None else rows[warmup : warmup + window + 1]
    measured = durations[warmup : warmup + len(edges) - 1]
    steps = len(measured)
    mean, median = float(measured.mean()), float(np.median(measured))
    counts = _counts(events, edges, steps_found)
    rates = [_samples_per_second(t, steps_found, warmup, window) for t in trainers]
    samples = None if None in rates else sum(r for r in rates if r is not None) * mean
    return StepStatistics(
        boundary=steps_found.boundary,
        how_found=steps_found.how_found,
        steps=steps,
        warmup_steps=warmup,
        median_s=median,
        mean_s=mean,
        p10_s=float(np.percentile(measured, 10)),
        p90_s=float(np.percentile(measured, 90)),
        p99_s=float(np.percentile(measured, 99)) if steps >= _ENOUGH_FOR_P99 else None,
        first_step_s=_first_step(events, rows),
        samples_per_step=samples,
        trainers=len(trainers),
        two_modes=abs(mean / median - 1.0) > TWO_MODES if median > 0 else False,
        cycle_steps=_cycle(events, rows, durations, counts["optimizer_steps_per_step"]),
        settled_after=settled,
        still_warming=shows_slope(measured),
        program_ended=program_ended,
        total_steps_seen=len(durations),
        **_phase_means(events, edges, steps_found.boundary),
        **_fetch_figures(events, edges, steps_found),
        **_copy_figures(events, edges),
        update_s=update_seconds(events, edges),
        **counts,
    )


def step_durations(events: Events, steps_found: StepsFound) -> np.ndarray:
    """Return the seconds of every complete iteration; float64 of shape (iterations,)."""
    durations: np.ndarray = np.diff(events.t_ns[boundary_rows(events, steps_found.boundary)]) / 1e9
    return durations


def window_ns(
    trainer: Events, steps_found: StepsFound, statistics: StepStatistics
) -> tuple[int, int]:
    """Return begin and end of the measured window on the probe's clock (ns), for the sensors."""
    rows = boundary_rows(trainer, steps_found.boundary)
    first = statistics.warmup_steps
    return int(trainer.t_ns[rows[first]]), int(trainer.t_ns[rows[first + statistics.steps]])


def _fetched_samples(events: Events, begin: int, end: int, loader: int) -> float | None:
    """Return the samples of a log that holds only the ends of fetches."""
    rows = events.at(step_log.FETCH_END)
    rows = rows[(rows > begin) & (rows < end) & (events.loader[rows] == loader)]
    values = events.value[rows]
    values = values[values != EXHAUSTED]
    if not len(values) or (values < 0).any():
        return None
    return float(values.sum())


def count_samples(events: Events, begin: int, end: int, loader: int | None) -> float | None:
    """Return the samples of the training batches fetched in rows begin .. end-1.

    Without `loader` those count whose batches are learned from most, in turns (one made anew for
    each epoch or fold). None: batches have no size, or there is neither loader nor explicit count.
    """
    explicit = events.at(step_log.EXPLICIT_STEP)
    explicit = explicit[(explicit > begin) & (explicit <= end)]
    if len(explicit) and (events.value[explicit] >= 0).all():
        return float(events.value[explicit].sum())
    if loader is not None and not len(events.at(step_log.FETCH_BEGIN)):
        return _fetched_samples(events, begin, end, loader)
    units = cut_units(events)
    useful = units.is_fetch & ~evaluation_units(units) & (units.value != EXHAUSTED)
    inside = useful & (units.start >= begin) & (units.start < end)
    counted = [loader] if loader is not None else _taking_turns(units, useful)
    values = units.value[inside & np.isin(units.loader, counted)]
    if not len(values) or (values < 0).any():
        return None
    return float(values.sum())


def _taking_turns(units: Units, useful: np.ndarray) -> list[int]:
    """Return the loaders that are learned from in turn; of two that are zipped the busier."""
    learned, counts = np.unique(units.loader[useful & units.learns], return_counts=True)
    loaders: list[int] = []
    spans: list[tuple[int, int]] = []
    for ident in learned[np.argsort(-counts, kind="stable")]:
        rows = units.start[useful & (units.loader == ident)]
        first, last = int(rows[0]), int(rows[-1])
        if all(last < begin or end < first for begin, end in spans):
            loaders.append(int(ident))
            spans.append((first, last))
    return loaders


def _default_warmup(steps: int, settled: int | None) -> int:
    wanted = max(LEAST_WARMUP, settled or 0)
    return wanted if steps >= 2 * wanted else steps // 3


def _samples_per_second(
    events: Events, steps_found: StepsFound, warmup: int, window: int | None
) -> float | None:
    rows = boundary_rows(events, steps_found.boundary)
    rows = rows[min(warmup, max(len(rows) - 2, 0)) :]
    if window is not None:
        rows = rows[: window + 1]
    if len(rows) < 2:
        return 0.0  # this trainer did nothing in the window
    loader = steps_found.boundary.ident if steps_found.boundary.kind == "loader" else None
    samples = count_samples(events, int(rows[0]), int(rows[-1]), loader)
    seconds = float(events.t_ns[rows[-1]] - events.t_ns[rows[0]]) / 1e9
    return None if samples is None or seconds <= 0 else samples / seconds


def _first_step(events: Events, rows: np.ndarray) -> float | None:
    begins = events.at(step_log.FETCH_BEGIN, step_log.FORWARD_BEGIN, step_log.BACKWARD_BEGIN)
    if not len(begins) or begins[0] >= rows[0]:
        return None
    return float(events.t_ns[rows[0]] - events.t_ns[begins[0]]) / 1e9


def _phase_means(events: Events, edges: np.ndarray, boundary: Boundary) -> dict[str, Any]:
    means = phase_seconds(events, edges).mean(axis=0)
    evaluation = evaluation_mask(events)
    step = step_numbers(events, edges)
    steps = len(edges) - 1
    seconds = stretches(events)

    def mean_where(mask: np.ndarray) -> float:
        return float(sum_by_step(step[mask], seconds[mask], steps).mean())

    figures: dict[str, Any] = {
        f"{name}_s": float(mean) for name, mean in zip(PHASES, means, strict=True)
    }
    several = boundary.kind != "loader"
    gaps = before_forwards(events, edges, evaluation, every_batch=several)
    figures["before_forward_s"] = float(gaps.mean())
    figures["evaluation_s"] = mean_where(evaluation)
    inside = np.flatnonzero(evaluation & (step >= 0) & (step < steps))
    figures["evaluations"] = len(np.unique(np.searchsorted(learning_rows(events), inside)))
    starting = is_open(events, step_log.LOADER_START_BEGIN, step_log.LOADER_START_END)
    figures["loader_start_s"] = mean_where(starting)
    figures["gc_s"] = mean_where(is_open(events, step_log.GC_BEGIN, step_log.GC_END))
    return figures


def _fetch_figures(events: Events, edges: np.ndarray, steps_found: StepsFound) -> dict[str, Any]:
    units = cut_units(events)
    whole = units.is_fetch & (units.fetched_row >= 0) & (units.value != EXHAUSTED)
    if steps_found.boundary.kind == "loader":
        of_training = units.loader == steps_found.boundary.ident
    else:
        of_training = np.isin(units.loader, units.loader[units.learns])
    begin = units.start[whole]
    wait = (events.t_ns[units.fetched_row[whole]] - events.t_ns[begin]) / 1e9
    inside = (begin >= edges[0]) & (begin < edges[-1])
    training = of_training[whole] & inside
    if not training.any():
        return {"fetch_median_s": None, "fetch_p99_s": None, "first_batch_s": 0.0}
    usual = float(np.median(wait[training]))
    _, first = np.unique(events.ident[begin], return_index=True)
    is_first = np.zeros(len(begin), dtype=bool)
    is_first[first] = True
    extra = np.maximum(wait[is_first & inside] - usual, 0.0).sum()
    return {
        "fetch_median_s": usual,
        "fetch_p99_s": float(np.percentile(wait[training], 99))
        if training.sum() >= _ENOUGH_FOR_P99
        else None,
        "first_batch_s": float(extra) / (len(edges) - 1),
    }


def _copy_figures(events: Events, edges: np.ndarray) -> dict[str, Any]:
    copies = events.at(step_log.COPY_BEGIN)
    copies = copies[(copies >= edges[0]) & (copies < edges[-1])]
    if not len(copies):
        return {}
    steps = len(edges) - 1
    pinned, non_blocking = (events.ident[copies] & 1) > 0, (events.ident[copies] & 2) > 0
    sizes = events.value[copies]
    if (sizes <= 0).all():  # the size stands at whichever end of the pair carries it
        ends = events.at(step_log.COPY_END)
        sizes = events.value[ends[(ends >= edges[0]) & (ends < edges[-1])]]
    return {
        "pageable_copies_per_step": float((~pinned).sum()) / steps,
        "blocking_copies_per_step": float((pinned & ~non_blocking).sum()) / steps,
        "h2d_bytes_per_step": float(np.maximum(sizes, 0).sum()) / steps,
    }


def _counts(events: Events, edges: np.ndarray, steps_found: StepsFound) -> dict[str, Any]:
    steps = len(edges) - 1

    def inside(rows: np.ndarray) -> np.ndarray:
        kept: np.ndarray = rows[(rows >= edges[0]) & (rows < edges[-1])]
        return kept

    stepped = inside(events.at(step_log.OPTIMIZER_BEGIN))
    units = cut_units(events)
    batches = units.is_fetch & (units.value != EXHAUSTED) & ~evaluation_units(units)
    if steps_found.boundary.kind == "loader":
        batches &= units.loader == steps_found.boundary.ident
    return {
        "backwards_per_step": len(inside(events.at(step_log.BACKWARD_BEGIN))) / steps,
        "optimizer_steps_per_step": len(stepped) / steps,
        "optimizers_per_step": len(np.unique(events.ident[stepped])),
        "batches_per_step": len(inside(units.start[batches])) / steps,
    }


def _cycle(
    events: Events, rows: np.ndarray, durations: np.ndarray, optimizer_steps: float
) -> int | None:
    units = cut_units(events)
    learning = np.isin(units.loader, units.loader[units.learns])
    ended = units.start[units.is_fetch & (units.value == EXHAUSTED) & learning]
    return cycle_length(step_numbers(events, rows)[ended], durations, optimizer_steps)
