"""Whether steps become longer with their number: a history that is scanned, a list that grows.

A phase is compared with the rest of the same steps, which other load makes longer as well.
"""

from collections.abc import Sequence

import numpy as np

from torchdoctor.schema import StepGrowth

_FEWEST = 40  # steps
_SEGMENTS = 12  # of as many steps, whose medians ignore single long steps
# Mann-Kendall: of the 66 pairs of segments, this many more rising than falling.
_SCORE = 40  # p = 0.003, of a phase in relation to the rest
_OWN_SCORE = 36  # p = 0.008, of the phase by itself: the rest may become shorter, as in warming up
_LEAST = 0.15  # of the first step, by which the last one is longer
_SMALL = 0.05  # of the step: a smaller rest says nothing of the load


def growth_of(
    phases: np.ndarray, names: Sequence[str], since_epoch: np.ndarray | None = None
) -> StepGrowth | None:
    """Return how steps become longer by one of their phases; None: none does for certain.

    `phases`: seconds of each phase in each step, shape (steps, len(names)); `since_epoch`: the
    number of each step within its epoch (-1: not known), which what grows may begin anew with.
    """
    growth = _largest(np.arange(len(phases)), phases, names, None)
    if growth is not None or since_epoch is None:
        return growth
    numbered = since_epoch >= 0
    anew_every = int(since_epoch.max()) + 1
    return _largest(since_epoch[numbered], phases[numbered], names, anew_every)


def _largest(
    numbers: np.ndarray, phases: np.ndarray, names: Sequence[str], anew_every: int | None
) -> StepGrowth | None:
    """Return the growth of the phase that grows most."""
    span = int(numbers.max() - numbers.min()) if len(numbers) else 0
    if len(numbers) < _FEWEST or span < _SEGMENTS:
        return None
    segments = np.array_split(np.argsort(numbers, kind="stable"), _SEGMENTS)
    at = np.array([np.median(numbers[rows]) for rows in segments])
    step_s = phases.sum(axis=1)
    slopes = [_slope(at, segments, phases[:, phase], step_s) for phase in range(len(names))]
    largest = int(np.argmax(slopes))
    slope = slopes[largest]
    middle = float(np.median(step_s))
    first = max(middle - slope * span / 2, _SMALL * middle)
    if slope * span < _LEAST * first:
        return None
    return StepGrowth(
        slope_s=slope,
        first_s=first,
        last_s=first + slope * span,
        phase=names[largest],
        anew_every=anew_every,
    )


def _slope(
    at: np.ndarray, segments: Sequence[np.ndarray], own_s: np.ndarray, step_s: np.ndarray
) -> float:
    """Return the seconds that a phase adds to each next step; 0: it does not for certain."""
    rest_s = step_s - own_s
    own_medians_s = np.array([np.median(own_s[rows]) for rows in segments])
    rest = np.array([np.median(rest_s[rows]) for rows in segments])
    usual = float(np.median(rest_s))
    if usual < _SMALL * float(np.median(step_s)):
        return _line(at, own_medians_s) if _score(own_medians_s) >= _SCORE else 0.0
    ratio = own_medians_s / np.maximum(rest, _SMALL * usual)
    rises = _score(ratio) >= _SCORE and _score(own_medians_s) >= _OWN_SCORE
    return _line(at, ratio) * usual if rises else 0.0


def _line(at: np.ndarray, values: np.ndarray) -> float:
    """Return the slope of a line: the median of all pairs' slopes."""
    earlier, later = np.triu_indices(len(at), k=1)
    apart = at[later] - at[earlier]
    slopes = (values[later] - values[earlier])[apart > 0] / apart[apart > 0]
    return float(np.median(slopes)) if len(slopes) else 0.0


def _score(values: np.ndarray) -> float:
    """Return how many more pairs rise than fall."""
    earlier, later = np.triu_indices(len(values), k=1)
    return float(np.sign(values[later] - values[earlier]).sum())
