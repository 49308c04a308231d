"""Two sets of numbers become an interval and a verdict. Pure: no clock, no launch, no file.

A *difference* is the natural logarithm of the baseline's time per sample minus the candidate's,
within one pair: above 0 is faster. Launches are samples, steps are not: a launch has one number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from torchdoctor.pairs.pair_times import usable
from torchdoctor.trials.claims import claim_interval
from torchdoctor.words import Interval, LaunchTiming, StepStatistics
from torchdoctor.words.report import TWO_MODES

SMALLEST_DELTA = 0.02  # differences below this are "the same" even on a quiet machine
LARGEST_DELTA = 0.05  # on a machine noisier than this, "unclear" is the honest word
CONFIDENCE = 0.95
_POWER = 0.8  # how often a true difference of the size that is `visible` is then seen


def has_two_modes(timings: Sequence[LaunchTiming]) -> bool:
    """Whether mean and median step differ by over 15 % in the typical one of these launches."""
    gaps = [fmean(t.step_s) / median(t.step_s) - 1.0 for t in timings if usable(t)]
    return bool(gaps) and abs(median(gaps)) > TWO_MODES


def decided_by(baselines: Sequence[LaunchTiming], steps: StepStatistics | None) -> str:
    """ "mean" or "median": which time per sample decides, from the baseline alone."""
    two_modes = (steps is not None and steps.two_modes) or has_two_modes(baselines)
    return "mean" if two_modes else "median"


def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit  # a third of the import time of scipy.stats

    return float(stdtrit(degrees, probability))


def chi_squared_quantile(probability: float, degrees: float) -> float:
    """Quantile of the chi-squared distribution."""
    from scipy.special import chdtri

    return float(chdtri(degrees, 1.0 - probability))


def visible(deviation: float, pairs: int, alpha: float = 1.0 - CONFIDENCE) -> float:
    """The smallest difference that so many pairs show four times in five, as a ratio - 1.

    Args:
        deviation: standard deviation of the pairs' differences, in log units.
        pairs: two or more.
        alpha: of the two-sided test.
    """
    reach = t_quantile(1.0 - alpha / 2, pairs - 1) + t_quantile(_POWER, pairs - 1)
    return math.expm1(min(reach * deviation / math.sqrt(pairs), 50.0))


def half_width(differences: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """Return half the t interval of the mean difference, in log units; infinite below two pairs."""
    pairs = len(differences)
    if pairs < 2:
        return math.inf
    deviation = math.sqrt(_variance(differences) / pairs)
    return t_quantile(0.5 + confidence / 2, pairs - 1) * deviation


def interval(differences: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the speed-up with its t interval; None below two pairs."""
    if len(differences) < 2:
        return None
    return as_interval(fmean(differences), half_width(differences, confidence))


def estimate(differences: Sequence[float]) -> Interval | None:
    """As `interval`; of one pair by what other machines' pairs vary, of none None."""
    if len(differences) == 1:
        claim = claim_interval(differences)
        return as_interval(claim.estimate, claim.half_width)
    return interval(differences)


def welch_interval(
    before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE
) -> Interval | None:
    """Speed-up of unpaired times with Welch's t interval of their logarithms; None below two.

    Args:
        before: times of the launches that are compared with.
        after: times of the others; shorter is faster.
        confidence: of the interval.
    """
    if min(len(before), len(after)) < 2:
        return None
    old, new = [math.log(x) for x in before], [math.log(x) for x in after]
    errors = [_variance(values) / len(values) for values in (old, new)]
    total = sum(errors)
    if total == 0.0:
        return as_interval(fmean(old) - fmean(new), 0.0)
    degrees = total**2 / (errors[0] ** 2 / (len(old) - 1) + errors[1] ** 2 / (len(new) - 1))
    half = t_quantile(0.5 + confidence / 2, degrees) * math.sqrt(total)
    return as_interval(fmean(old) - fmean(new), half)


def as_interval(mean: float, half: float) -> Interval:
    """Log units to a speed-up."""
    # A ratio above e^50 says nothing more, and infinity is no JSON.
    low, high = max(mean - half, -50.0), min(mean + half, 50.0)
    return Interval(estimate=math.exp(mean), low=math.exp(low), high=math.exp(high))


def p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p of a paired t test for no difference; 1 below two pairs."""
    pairs = len(differences)
    if pairs < 2:
        return 1.0
    mean, deviation = fmean(differences), math.sqrt(_variance(differences) / pairs)
    if deviation == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    from scipy.special import stdtr

    return float(2.0 * stdtr(pairs - 1, -abs(mean) / deviation))


def delta(noise_floor: Interval | None) -> float:
    """What counts as no difference: as far as the A/A's interval reaches, 2 % to 5 %."""
    if noise_floor is None:
        return SMALLEST_DELTA
    return min(LARGEST_DELTA, max(SMALLEST_DELTA, reach(noise_floor)))


def reach(interval: Interval) -> float:
    """How far an interval goes from 1, as a ratio minus 1."""
    return math.expm1(max(abs(math.log(interval.low)), abs(math.log(interval.high))))


def excludes_one(interval: Interval) -> bool:
    """Whether the interval says that there is a difference."""
    return interval.low > 1 or interval.high < 1


def verdict(differences: Sequence[float], delta: float = SMALLEST_DELTA) -> str:
    """Return "faster", "slower", "same" or "unclear" by the t interval of paired differences.

    Args:
        differences: log baseline minus log candidate, one for each pair.
        delta: what counts as no difference, as a ratio above 1.
    """
    if len(differences) < 2:
        return "unclear"
    mean, half = fmean(differences), half_width(differences)
    if abs(mean) > half:
        return "faster" if mean > 0 else "slower"
    narrow = half_width(differences, 0.90)
    if max(abs(mean - narrow), abs(mean + narrow)) <= math.log1p(delta):
        return "same"
    return "unclear"


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
