"""The figures and phases of the steps of a launch, and what recurs: warming up, cycles."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from torchdoctor.observe.calls import call_figures
from torchdoctor.observe.events import (
    EXHAUSTED,
    Events,
    Units,
    cut_units,
    evaluation_mask,
    evaluation_units,
    learning_rows,
)
from torchdoctor.observe.growth import growth_of
from torchdoctor.observe.phases import unobserved_phases
from torchdoctor.observe.step_finding import StepsFound, boundary_rows
from torchdoctor.probe import step_log
from torchdoctor.schema import Boundary, StepStatistics
from torchdoctor.schema.report import TWO_MODES

PHASES = ("other", "optimizer", "forward", "backward", "data_wait", "h2d_copy")
_OTHER = 0
# Later in the list wins: forward inside optimizer.step(closure) is forward, a checkpointed
# forward inside backward is backward, a fetch is a wait wherever it happens.
_BRACKETS = (
    (step_log.OPTIMIZER_BEGIN, step_log.OPTIMIZER_END, 1),
    (step_log.FORWARD_BEGIN, step_log.FORWARD_END, 2),
    (step_log.GRADIENT_BEGIN, step_log.GRADIENT_END, 3),
    (step_log.BACKWARD_BEGIN, step_log.BACKWARD_END, 3),
    (step_log.LOADER_START_BEGIN, step_log.LOADER_START_END, 4),
    (step_log.FETCH_BEGIN, step_log.FETCH_END, 4),
    (step_log.COPY_BEGIN, step_log.COPY_END, 5),
)
_TREND_STEPS = 10
# Mann-Kendall: of the 45 pairs among ten steps, this many more falling than rising; p = 0.01.
_TREND_SCORE = 27
_TREND_SIZE = 0.03  # and the fall must matter
_LONG_STEP = 3.0  # times the median
_LONGEST_SEARCH = 2000
LEAST_WARMUP = 10
_ENOUGH_FOR_P99 = 50


def is_open(events: Events, begin: int, end: int) -> np.ndarray:
    """Return True if such a bracket is open right after each event; bool of shape (n,)."""
    change = (events.code == begin).astype(np.int64) - (events.code == end)
    depth = np.cumsum(change)
    if not len(depth):
        return depth.astype(bool)
    if depth.min() < 0 or (depth[-1] > 0 and depth.max() > 1):
        # An end or a begin is missing (an exception, a kill): counting would drift for ever,
        # so the latest event of the pair decides.
        latest = np.maximum.accumulate(np.where(change != 0, np.arange(len(change)), -1))
        return np.where(latest >= 0, change[latest] > 0, False)
    return depth > 0


def phase_after(events: Events) -> np.ndarray:
    """Return the index into `PHASES` of the stretch that follows each event.

    Phases nest (a closure given to `optimizer.step` holds forward and backward), so each stretch is
    of the most specific one that is open: the phases of a step sum to the step.
    """
    phase = np.full(len(events), _OTHER, dtype=np.int64)
    for begin, end, number in _BRACKETS:
        phase[is_open(events, begin, end)] = number
    return phase


def stretches(events: Events) -> np.ndarray:
    """Return the seconds from each event to the next (0 after the last); float64 of shape (n,)."""
    return np.diff(events.t_ns, append=events.t_ns[-1:]) / 1e9


def sum_by_step(step: np.ndarray, weights: np.ndarray, steps: int) -> np.ndarray:
    """Sum weights by step number; rows outside 0 .. steps-1 are left out. Shape (steps,)."""
    inside = (step >= 0) & (step < steps)
    return np.bincount(step[inside], weights=weights[inside], minlength=steps)


def phase_seconds(events: Events, edges: np.ndarray) -> np.ndarray:
    """Return the seconds of each phase in each step between `edges`; shape (steps, len(PHASES))."""
    steps = max(len(edges) - 1, 0)
    cell = step_numbers(events, edges) * len(PHASES) + phase_after(events)
    return sum_by_step(cell, stretches(events), steps * len(PHASES)).reshape(steps, len(PHASES))


def step_numbers(events: Events, edges: np.ndarray) -> np.ndarray:
    """Return the step that each event and the stretch after it belong to; -1: before the first."""
    return np.searchsorted(edges, np.arange(len(events)), side="right") - 1


def between_passes(events: Events) -> np.ndarray:
    """Return True for the stretches from the end of a loader's pass to the next fetch; (n,)."""
    ended = (events.code == step_log.FETCH_END) & (events.value == step_log.EXHAUSTED)
    begins = np.isin(events.code, (step_log.FETCH_BEGIN, step_log.LOADER_START_BEGIN))
    latest = np.maximum.accumulate(np.where(ended | begins, np.arange(len(events)), 0))
    return np.asarray(ended[latest] & (phase_after(events) == _OTHER))


def before_forwards(
    events: Events, edges: np.ndarray, evaluation: np.ndarray, every_batch: bool = False
) -> np.ndarray:
    """Return the seconds of host time right before each step's first forward, outside any phase.

    They begin with whatever came last (boundary, fetch, optimizer step, backward), leave out waits,
    copies, ends of epochs and `evaluation`, and end with the last copy to the device. If no
    module's call shows a forward, they go on to the first backward. With `every_batch` the time
    before each forward behind a backward counts, as batches may accumulate.
    """
    forwards = events.at(step_log.FORWARD_BEGIN)
    forwards = forwards if len(forwards) else events.at(step_log.BACKWARD_BEGIN)
    forwards = forwards[~evaluation[forwards] & (forwards >= edges[0]) & (forwards < edges[-1])]
    step = np.searchsorted(edges, forwards, side="right") - 1
    left_out = evaluation | between_passes(events)
    idle = np.where((phase_after(events) == _OTHER) & ~left_out, stretches(events), 0.0)
    total = np.concatenate([[0.0], np.cumsum(idle)])
    works = step_log.FORWARD_END, step_log.BACKWARD_END, step_log.OPTIMIZER_END
    work_ends = np.union1d(events.at(*works), edges)
    start = work_ends[np.searchsorted(work_ends, forwards) - 1]
    counts = np.diff(step, prepend=-1) != 0
    if every_batch:
        counts |= events.code[start] == step_log.BACKWARD_END
    copies = np.append(-1, events.at(step_log.COPY_END))
    copied = copies[np.searchsorted(copies, forwards) - 1]
    end = np.where(copied > start, copied, forwards)
    return sum_by_step(step[counts], (total[end] - total[start])[counts], len(edges) - 1)


def phase_means(events: Events, edges: np.ndarray, kind: str) -> dict[str, Any]:
    """Return fields of `StepStatistics`: the mean seconds of each phase, and of some parts."""
    evaluation = evaluation_mask(events)
    step, seconds, steps = step_numbers(events, edges), stretches(events), len(edges) - 1

    def mean_where(mask: np.ndarray) -> float:
        return float(sum_by_step(step[mask], seconds[mask], steps).mean())

    means = phase_seconds(events, edges).mean(axis=0).tolist()
    before_s = 0.0  # what a library's function does before its first forward is its own
    if kind != "entry":
        every_batch = kind != "loader"
        before_s = float(before_forwards(events, edges, evaluation, every_batch).mean())
    inside = np.flatnonzero(evaluation & (step >= 0) & (step < steps))
    # What lies between the same two learning events is one section.
    _, first = np.unique(np.searchsorted(learning_rows(events), inside), return_index=True)
    starting = is_open(events, step_log.LOADER_START_BEGIN, step_log.LOADER_START_END)
    return {
        **{f"{name}_s": mean for name, mean in zip(PHASES, means, strict=True)},
        "before_forward_s": before_s,
        "evaluation_s": mean_where(evaluation),
        "evaluation_wait_s": mean_where(
            evaluation & (phase_after(events) == PHASES.index("data_wait"))
        ),
        "evaluations": len(first),
        "evaluation_every": regular_distance(step[inside[first]]),
        "loader_start_s": mean_where(starting),
        "between_epochs_s": mean_where(between_passes(events) & ~evaluation),
        "gc_s": mean_where(is_open(events, step_log.GC_BEGIN, step_log.GC_END)),
    }


def regular_distance(steps: np.ndarray) -> int | None:
    """Return how many steps lie between events of these steps; None: they come irregularly."""
    gaps = np.diff(steps)
    return int(np.median(gaps)) if len(gaps) and gaps.max() - gaps.min() <= 1 else None


def shows_slope(durations: np.ndarray) -> bool:
    """Return True if the last ten step times still fall, by a rank test that ignores spikes."""
    last = durations[-_TREND_STEPS:]
    if len(last) < _TREND_STEPS:
        return False
    earlier, later = np.triu_indices(_TREND_STEPS, k=1)
    score = float(np.sign(last[earlier] - last[later]).sum())
    before, after = (float(np.median(half)) for half in np.array_split(last, 2))
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
    """Return the steps of an epoch, of a period of far longer steps, or an accumulation."""
    if len(epoch_ends):
        ends = epoch_ends if len(epoch_ends) > 1 else np.append(-1, epoch_ends)
        return max(int(np.median(np.diff(ends))), 1)
    gaps = np.diff(np.flatnonzero(durations > _LONG_STEP * np.median(durations)))
    # A step may be missing at the edge of an epoch that does not divide evenly.
    if len(gaps) > 1 and gaps.max() - gaps.min() <= 1 and gaps.min() > 1:
        return int(np.median(gaps))
    accumulated = 0.0 < optimizer_steps_per_step < 0.9
    return round(1.0 / optimizer_steps_per_step) if accumulated else None


def busy_seconds(events: Events, edges: np.ndarray) -> float | None:
    """Return the mean seconds of a step in which the device surely computes; None: not known.

    Where it comes to an event later than the host made it, it was busy from then on: it may have
    idled only before the host was there.
    """
    if events.host_ns is None:
        return None
    idle_until = np.maximum(events.t_ns[:-1], events.host_ns[1:])
    busy_s = np.append(np.maximum(events.t_ns[1:] - idle_until, 0), 0) / 1e9
    return float(sum_by_step(step_numbers(events, edges), busy_s, len(edges) - 1).mean())


def update_seconds(events: Events, edges: np.ndarray) -> list[float]:
    """Return the seconds per step of each optimizer's updates, without other steps within.

    Each counts from the last forward or backward within `step(closure)`, or from its beginning.
    """
    rows = events.at(step_log.OPTIMIZER_BEGIN, step_log.OPTIMIZER_END)
    rows = rows[(rows >= edges[0]) & (rows <= edges[-1])]  # a boundary may be the end of a step
    learned = events.at(step_log.FORWARD_END, step_log.BACKWARD_END)
    totals: dict[int, int] = defaultdict(int)
    open_steps: list[list[int]] = []  # row it began at, ns of those within it
    for row in rows.tolist():
        if events.code[row] == step_log.OPTIMIZER_BEGIN:
            open_steps.append([row, 0])
        elif open_steps:  # else it began before the window
            begin, within = open_steps.pop()
            last = int(np.searchsorted(learned, row)) - 1
            start = max(begin, int(learned[last])) if last >= 0 else begin
            if open_steps:
                open_steps[-1][1] += int(events.t_ns[row] - events.t_ns[begin])
            # What lies within may have come before the last backward, and is not counted anyway.
            own_ns = int(events.t_ns[row] - events.t_ns[start]) - within
            totals[int(events.ident[row])] += max(own_ns, 0)
    steps = len(edges) - 1
    return [totals[ident] / 1e9 / steps for ident in range(max(totals, default=-1) + 1)]


class NoIterationError(ValueError):
    """No iteration lies between the boundaries that were seen."""


def step_statistics(
    trainers: Sequence[Events],
    steps_found: StepsFound,
    warmup: int | None = None,
    window: int | None = None,
    program_ended: bool = False,
) -> StepStatistics:
    """Summarise the iterations of a measured window; NoIterationError: there is none."""
    events, boundary = trainers[0], steps_found.boundary
    rows = boundary_rows(events, boundary)
    if len(rows) < 2:
        raise NoIterationError(f"{len(rows)} boundaries make no iteration")
    begins = events.at(step_log.FETCH_BEGIN, step_log.FORWARD_BEGIN, step_log.BACKWARD_BEGIN)
    first = min([rows[0], *begins[:1]])
    durations = np.diff(events.t_ns[rows]) / 1e9
    settled = settled_after(durations)
    if warmup is None:
        warmup = _usual_warmup(settled, len(durations))
    warmup = min(warmup, len(durations) - 1)
    edges = rows[warmup:] if window is None else rows[warmup : warmup + window + 1]
    measured = durations[warmup : warmup + len(edges) - 1]
    mean, median = float(measured.mean()), float(np.median(measured))
    units = cut_units(events)
    counts = _counts(events, units, edges, boundary)
    rates = [_samples_per_second(t, boundary, warmup, window) for t in trainers]
    samples = None if None in rates else sum(r for r in rates if r is not None) * mean
    learning = np.isin(units.loader, units.loader[units.learns])
    epochs = units.start[units.is_fetch & (units.value == EXHAUSTED) & learning]
    epoch_steps, updates = step_numbers(events, rows)[epochs], counts["optimizer_steps_per_step"]
    cycle_steps = cycle_length(epoch_steps, durations, updates)
    return StepStatistics(
        boundary=boundary,
        evidence=steps_found.evidence,
        steps=len(measured),
        warmup_steps=warmup,
        median_s=median,
        mean_s=mean,
        p10_s=float(np.percentile(measured, 10)),
        p90_s=float(np.percentile(measured, 90)),
        p99_s=_percentile_99(measured),
        first_step_s=float(events.t_ns[rows[0]] - events.t_ns[first]) / 1e9 or None,
        samples_per_step=samples,
        trainers=len(trainers),
        two_modes=abs(mean / median - 1.0) > TWO_MODES if median > 0 else False,
        cycle_steps=cycle_steps,
        settled_after=settled,
        unobserved=unobserved_phases(events, rows, edges),
        growth=growth_of(phase_seconds(events, edges), PHASES, _since_epoch(events, epochs, edges)),
        still_warming=shows_slope(measured),
        device_clock=events.device_clock,
        program_ended=program_ended,
        total_steps_seen=len(durations),
        calls=call_figures(events, edges, boundary, samples),
        **phase_means(events, edges, boundary.kind),
        **_fetch_figures(events, units, edges, boundary),
        **_copy_figures(events, edges),
        update_s=update_seconds(events, edges),
        device_busy_s=busy_seconds(events, edges),
        **counts,
    )


def _usual_warmup(settled: int | None, steps: int) -> int:
    """Return how many steps at the start are not measured, of a program that names no number."""
    warmup = max(LEAST_WARMUP, settled or 0)
    return warmup if steps >= 2 * warmup else steps // 3


def _since_epoch(events: Events, epochs: np.ndarray, edges: np.ndarray) -> np.ndarray | None:
    """Return the number of each measured step since an epoch ended; None: at most one did."""
    ends = np.unique(step_numbers(events, edges)[epochs])
    ends = ends[ends >= 0]
    if len(ends) < 2:
        return None
    steps = np.arange(len(edges) - 1)
    latest = np.searchsorted(ends, steps, side="right") - 1
    return np.asarray(np.where(latest >= 0, steps - ends[latest], -1))


def _percentile_99(values: np.ndarray) -> float | None:
    return float(np.percentile(values, 99)) if len(values) >= _ENOUGH_FOR_P99 else None


def step_durations(events: Events, steps_found: StepsFound) -> np.ndarray:
    """Return the seconds of every complete iteration; float64 of shape (iterations,)."""
    return np.asarray(np.diff(events.t_ns[boundary_rows(events, steps_found.boundary)]) / 1e9)


def window_ns(
    trainer: Events, steps_found: StepsFound, statistics: StepStatistics
) -> tuple[int, int]:
    """Return begin and end of the measured window on the probe's clock (ns), for the sensors."""
    rows = boundary_rows(trainer, steps_found.boundary)
    first = statistics.warmup_steps
    return int(trainer.t_ns[rows[first]]), int(trainer.t_ns[rows[first + statistics.steps]])


def count_samples(events: Events, begin: int, end: int, loader: int | None) -> float | None:
    """Return the samples of the training batches fetched in rows begin .. end-1.

    Without `loader` those count whose batches are learned from most, in turns (one made anew for
    each epoch). None: batches have no size, or there is neither loader nor explicit count.
    """
    explicit = events.at(step_log.EXPLICIT_STEP)
    explicit = explicit[(explicit > begin) & (explicit <= end)]
    if len(explicit) and (events.value[explicit] >= 0).all():
        return float(events.value[explicit].sum())
    if loader is not None and not len(events.at(step_log.FETCH_BEGIN)):  # a log of ends alone
        rows = events.at(step_log.FETCH_END)
        rows = rows[(rows > begin) & (rows < end) & (events.loader[rows] == loader)]
        values = events.value[rows][events.value[rows] != EXHAUSTED]
    else:
        units = cut_units(events)
        inside = _training_fetches(units) & (units.start >= begin) & (units.start < end)
        counted = [loader] if loader is not None else _taking_turns(units)
        values = units.value[inside & np.isin(units.loader, counted)]
    if not len(values) or (values < 0).any():
        return None
    return float(values.sum())


def _training_fetches(units: Units) -> np.ndarray:
    return np.asarray(units.is_fetch & ~evaluation_units(units) & (units.value != EXHAUSTED))


@lru_cache(4)
def _taking_turns(units: Units) -> list[int]:
    """Return the loaders that are learned from in turn; of two that are zipped the busier."""
    useful = _training_fetches(units)
    learned, counts = np.unique(units.loader[useful & units.learns], return_counts=True)
    loaders: list[int] = []
    spans: list[tuple[int, int]] = []
    for ident in learned[np.argsort(-counts, kind="stable")]:
        rows = units.start[useful & (units.loader == ident)]
        first = int(rows[0])
        last = int(rows[-1])
        if all(last < begin or end < first for begin, end in spans):
            loaders.append(int(ident))
            spans.append((first, last))
    return loaders


def _samples_per_second(
    events: Events, boundary: Boundary, warmup: int, window: int | None
) -> float | None:
    rows = boundary_rows(events, boundary)
    rows = rows[min(warmup, max(len(rows) - 2, 0)) :][: None if window is None else window + 1]
    if len(rows) < 2:
        return 0.0  # this trainer did nothing in the window
    loader = boundary.ident if boundary.kind == "loader" else None
    samples = count_samples(events, int(rows[0]), int(rows[-1]), loader)
    seconds = float(events.t_ns[rows[-1]] - events.t_ns[rows[0]]) / 1e9
    return None if samples is None or seconds <= 0 else samples / seconds


def _fetch_figures(
    events: Events, units: Units, edges: np.ndarray, boundary: Boundary
) -> dict[str, Any]:
    whole = units.is_fetch & (units.fetched_row >= 0) & (units.value != EXHAUSTED)
    is_loader = boundary.kind == "loader"
    feeding = [boundary.ident] if is_loader else units.loader[units.learns]
    begin = units.start[whole]
    wait = (events.t_ns[units.fetched_row[whole]] - events.t_ns[begin]) / 1e9
    inside = (begin >= edges[0]) & (begin < edges[-1])
    training = np.isin(units.loader[whole], feeding) & inside
    if not training.any():
        return {"fetch_median_s": None, "fetch_p99_s": None, "first_batch_s": 0.0}
    usual = float(np.median(wait[training]))
    _, first = np.unique(events.ident[begin], return_index=True)
    extra = np.maximum(wait[first[training[first]]] - usual, 0.0).sum()
    return {
        "fetch_median_s": usual,
        "fetch_p99_s": _percentile_99(wait[training]),
        "first_batch_s": float(extra) / (len(edges) - 1),
    }


def _copy_figures(events: Events, edges: np.ndarray) -> dict[str, Any]:
    copies = _within(events.at(step_log.COPY_BEGIN), edges)
    if not len(copies):
        return {}
    steps = len(edges) - 1
    pinned = (events.ident[copies] & 1) > 0
    non_blocking = (events.ident[copies] & 2) > 0
    return {
        "pageable_copies_per_step": float((~pinned).sum()) / steps,
        "blocking_copies_per_step": float((pinned & ~non_blocking).sum()) / steps,
    }


def _within(rows: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.asarray(rows[(rows >= edges[0]) & (rows < edges[-1])])


def _counts(events: Events, units: Units, edges: np.ndarray, boundary: Boundary) -> dict[str, Any]:
    batches = _training_fetches(units)
    if boundary.kind == "loader":
        batches &= units.loader == boundary.ident
    steps = len(edges) - 1
    stepped = _within(events.at(step_log.OPTIMIZER_BEGIN), edges)
    return {
        "backwards_per_step": len(_within(events.at(step_log.BACKWARD_BEGIN), edges)) / steps,
        "optimizer_steps_per_step": len(stepped) / steps,
        "optimizers_per_step": len(np.unique(events.ident[stepped])),
        "batches_per_step": len(_within(units.start[batches], edges)) / steps,
    }
