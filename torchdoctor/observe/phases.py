"""Which phase of the training each stretch of time between two events belongs to.

Phases nest (a closure given to `optimizer.step` holds forward and backward), so each stretch is of
the most specific one that is open: the phases of a step sum to the step.
"""

from typing import Any

import numpy as np

from torchdoctor.observe.evaluation import evaluation_mask, learning_rows
from torchdoctor.observe.events import Events
from torchdoctor.probe import step_log

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
    """Return the index into `PHASES` of the stretch that follows each event."""
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


def phase_means(events: Events, edges: np.ndarray, every_batch: bool) -> dict[str, Any]:
    """Return fields of `StepStatistics`: the mean seconds of each phase, and of some parts."""
    evaluation = evaluation_mask(events)
    step, seconds, steps = step_numbers(events, edges), stretches(events), len(edges) - 1

    def mean_where(mask: np.ndarray) -> float:
        return float(sum_by_step(step[mask], seconds[mask], steps).mean())

    means = phase_seconds(events, edges).mean(axis=0).tolist()
    inside = np.flatnonzero(evaluation & (step >= 0) & (step < steps))
    starting = is_open(events, step_log.LOADER_START_BEGIN, step_log.LOADER_START_END)
    return {
        **{f"{name}_s": mean for name, mean in zip(PHASES, means, strict=True)},
        "before_forward_s": float(before_forwards(events, edges, evaluation, every_batch).mean()),
        "evaluation_s": mean_where(evaluation),
        "evaluation_wait_s": mean_where(
            evaluation & (phase_after(events) == PHASES.index("data_wait"))
        ),
        "evaluations": len(np.unique(np.searchsorted(learning_rows(events), inside))),
        "loader_start_s": mean_where(starting),
        "between_epochs_s": mean_where(between_passes(events) & ~evaluation),
        "gc_s": mean_where(is_open(events, step_log.GC_BEGIN, step_log.GC_END)),
    }
