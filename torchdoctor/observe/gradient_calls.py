"""Programs that learn without a backward pass: which events stand for it.

`torch.autograd.grad` is called for many things: the update that is written by hand, a gradient
penalty or a derivative within the loss, an adversarial example. Whether a call is the backward pass
of its program, only the whole log tells: it never is where backward passes are made.
"""

from __future__ import annotations

import numpy as np

from torchdoctor.probe import step_log

_FEWEST = 3
_STEADY_SPAN = 0.6  # of all such calls, by time or number
_MINOR = 0.2  # of the other kind's calls: those of an evaluation between


def with_backwards(rows: np.ndarray) -> tuple[np.ndarray, str]:
    """The log with backwards where the program made none but computed gradients otherwise.

    Args:
        rows: (code, ident, t_ns, value) by time; int64 of shape (n, 4).

    Returns:
        The rows, int64 of shape (m, 4), and what shows that something is learned, as
        `records.Boundary.learned_by`.
    """
    code = rows[:, 0]
    has_backwards = _any(code, step_log.BACKWARD_BEGIN, step_log.BACKWARD_END)
    begins = rows[code == step_log.GRADIENT_BEGIN]
    if len(begins) and not has_backwards:
        kind = _backward_of(begins)
        rows = rows.copy()
        own = rows[:, 1] == kind
        for before, after in (
            (step_log.GRADIENT_BEGIN, step_log.BACKWARD_BEGIN),
            (step_log.GRADIENT_END, step_log.BACKWARD_END),
        ):
            rows[own & (code == before), :2] = after, 0
        return _without_batches(rows), step_log.GRADIENT_CALLS[kind]
    if not _any(code, step_log.LEARNED):
        return rows, "backward"
    if has_backwards or _any(code, step_log.OPTIMIZER_BEGIN, step_log.OPTIMIZER_END):
        return _without_batches(rows), "backward"
    return _batches_trained_on(rows), "batch"


def _any(code: np.ndarray, *wanted: int) -> bool:
    return bool(np.isin(code, wanted).any())


def _backward_of(begins: np.ndarray) -> int:
    """The kind of call that ends a step's computation, number in `GRADIENT_CALLS`."""
    kinds, time = begins[:, 1], begins[:, 2]
    counts = np.bincount(kinds, minlength=len(step_log.GRADIENT_CALLS))

    def goes_on(kind: int) -> bool:
        own = np.flatnonzero(kinds == kind)
        if len(own) < _FEWEST:
            return False
        first, last = own[[0, -1]]
        # By calls as well: the first iteration may take longer than many after it.
        by_calls = float(last - first) / (len(kinds) - 1)
        by_time = float(time[last] - time[first]) / max(float(time[-1] - time[0]), 1.0)
        return max(by_calls, by_time) >= _STEADY_SPAN

    plain, functional, _ = range(len(step_log.GRADIENT_CALLS))
    if goes_on(plain) and counts[plain] >= _MINOR * counts[functional]:
        return plain
    # What is differentiated again is a part of something, where anything ends it.
    chosen = next((kind for kind in range(functional, len(counts)) if goes_on(kind)), None)
    return chosen if chosen is not None else int(np.argmax(counts))


def _without_batches(rows: np.ndarray) -> np.ndarray:
    return rows[rows[:, 0] != step_log.LEARNED]


def _batches_trained_on(rows: np.ndarray) -> np.ndarray:
    """Without the batches of loaders whose models are only evaluated, where others train."""
    code, loader = rows[:, 0], rows[:, 1] & ((1 << step_log.LOADER_BITS) - 1)
    learned = np.flatnonzero(code == step_log.LEARNED)
    trains = (code == step_log.FORWARD_BEGIN) & ((rows[:, 3] & 2) > 0)
    last = np.searchsorted(learned, np.flatnonzero(trains)) - 1
    training = np.unique(loader[learned[last[last >= 0]]])
    if not len(training):
        return rows
    return rows[(code != step_log.LEARNED) | np.isin(loader, training)]
