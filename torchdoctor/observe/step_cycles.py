"""Regularities in a column of step times: warming up, cycles."""

from __future__ import annotations

import numpy as np

_TREND_STEPS = 10
# Mann-Kendall: of the 45 pairs among ten steps, this many more falling than rising; p = 0.01.
_TREND_SCORE = 27
_TREND_SIZE = 0.03  # and the fall must matter
_LONG_STEP = 3.0  # times the median
_LONGEST_SEARCH = 2000


def shows_slope(durations: np.ndarray) -> bool:
    """Whether the last ten step times still fall (a rank test: robust against single spikes)."""
    last = durations[-_TREND_STEPS:]
    if len(last) < _TREND_STEPS:
        return False
    earlier, later = np.triu_indices(_TREND_STEPS, k=1)
    score = float(np.sign(last[earlier] - last[later]).sum())
    half = _TREND_STEPS // 2
    before, after = float(np.median(last[:half])), float(np.median(last[half:]))
    return score >= _TREND_SCORE and after < before * (1.0 - _TREND_SIZE)


def settled_after(durations: np.ndarray) -> int | None:
    """How many steps it took until the last ten showed no slope; None: fewer than ten steps."""
    for count in range(_TREND_STEPS, min(len(durations), _LONGEST_SEARCH) + 1):
        if not shows_slope(durations[:count]):
            return count
    return len(durations) if len(durations) >= _TREND_STEPS else None


def cycle_length(
    epoch_ends: np.ndarray, durations: np.ndarray, optimizer_steps_per_step: float = 1.0
) -> int | None:
    """Steps per regular cycle, where one was seen.

    Args:
        epoch_ends: step numbers in which the training loader was found exhausted, ascending.
        durations: seconds per step.
        optimizer_steps_per_step: below one where gradients are accumulated.

    Returns:
        The length of an epoch; else the period of far longer steps (rollouts, evaluation every
        n steps); else that of gradient accumulation; None where nothing repeats.
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
