"""Turns differences of pairs (see `bench.pair_times`) into an interval. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean, median, variance

from torchdoctor.schema import Block, Interval, LaunchTiming, StepStatistics
from torchdoctor.schema.report import TWO_MODES
from torchdoctor.schema.students_t import t_probability, t_quantile
from torchdoctor.trials.claims import claim_interval

SMALLEST_DELTA = 0.02  # smaller differences are "the same" even on a quiet machine
LARGEST_DELTA = 0.05  # a noisier machine decides nothing, rather than "the same"
CONFIDENCE = 0.95
_POWER = 0.8  # how often a true difference of the size that is `visible` is then seen


def has_two_modes(timings: Sequence[LaunchTiming | Block]) -> bool:
    """Return True if mean and median step differ by over 15 % in the typical launch or block."""
    gaps = [fmean(t.step_s) / median(t.step_s) - 1.0 for t in timings if sum(t.step_s) > 0]
    return bool(gaps) and abs(median(gaps)) > TWO_MODES


def blocks_differ(timings: Sequence[LaunchTiming]) -> bool:
    """Return True if the mean and the median block of a launch typically differ by over 15 %."""
    gaps = []
    for timing in timings:
        block_means_s = [fmean(block.step_s) for block in timing.blocks if sum(block.step_s) > 0]
        if block_means_s:
            gaps.append(fmean(block_means_s) / median(block_means_s) - 1.0)
    return bool(gaps) and abs(median(gaps)) > TWO_MODES


def on_device(timings: Sequence[LaunchTiming]) -> bool:
    """Return True if launches used an accelerator: their steps are stamped by the host alone."""
    return any(timing.on_device for timing in timings)


def decided_by(baselines: Sequence[LaunchTiming], steps: StepStatistics | None) -> str:
    """Return "mean" or "median": the time per sample that decides, by the baseline alone.

    On an accelerator the median step is the host's, which runs ahead of its device; a whole block
    ends when the device has done its work.
    """
    two_modes = (steps is not None and steps.two_modes) or has_two_modes(baselines)
    return "mean" if on_device(baselines) or two_modes else "median"


def visible(deviation: float, pairs: int, alpha: float = 1.0 - CONFIDENCE) -> float:
    """Return the smallest difference (ratio - 1) that so many pairs show in 80 % of cases."""
    reach = t_quantile(1.0 - alpha / 2, pairs - 1) + t_quantile(_POWER, pairs - 1)
    return math.expm1(min(reach * deviation / math.sqrt(pairs), 50.0))


def half_width(differences: Sequence[float]) -> float:
    """Return half the t interval of the mean difference; infinite below two pairs."""
    pairs = len(differences)
    if pairs < 2:
        return math.inf
    return t_quantile(0.5 + CONFIDENCE / 2, pairs - 1) * math.sqrt(variance(differences) / pairs)


def interval(differences: Sequence[float]) -> Interval | None:
    """Return the speed-up with its t interval; None below two pairs."""
    if len(differences) < 2:
        return None
    return as_interval(fmean(differences), half_width(differences))


def estimate(differences: Sequence[float]) -> Interval | None:
    """Return `interval`, or for a single pair the interval by how pairs vary on other machines."""
    if len(differences) == 1:
        claim = claim_interval(differences)
        return as_interval(claim.estimate, claim.half_width)
    return interval(differences)


def welch_interval(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Return the speed-up of unpaired times with Welch's t interval; None below two times."""
    if min(len(before), len(after)) < 2:
        return None
    old = [math.log(seconds) for seconds in before]
    new = [math.log(seconds) for seconds in after]
    errors = [variance(values) / len(values) for values in (old, new)]
    total = sum(errors)
    if total == 0.0:
        return as_interval(fmean(old) - fmean(new), 0.0)
    degrees = total**2 / (errors[0] ** 2 / (len(old) - 1) + errors[1] ** 2 / (len(new) - 1))
    half = t_quantile(0.5 + CONFIDENCE / 2, degrees) * math.sqrt(total)
    return as_interval(fmean(old) - fmean(new), half)


def as_interval(mean: float, half: float) -> Interval:
    """Return the speed-up of a mean and half an interval in log units."""
    # JSON has no infinity.
    low = max(mean - half, -50.0)
    high = min(mean + half, 50.0)
    return Interval(estimate=math.exp(mean), low=math.exp(low), high=math.exp(high))


def p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p of a paired t test for no difference; 1 below two pairs."""
    pairs = len(differences)
    if pairs < 2:
        return 1.0
    mean = fmean(differences)
    deviation = math.sqrt(variance(differences) / pairs)
    if deviation == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    return 2.0 * t_probability(pairs - 1, -abs(mean) / deviation)


def delta(noise_floor: Interval | None) -> float:
    """Return the largest difference that counts as none: the reach of the A/A, 2 % to 5 %."""
    if noise_floor is None:
        return SMALLEST_DELTA
    return min(LARGEST_DELTA, max(SMALLEST_DELTA, reach(noise_floor)))


def reach(interval: Interval) -> float:
    """Return how far an interval goes from 1, as a ratio minus 1."""
    return math.expm1(max(abs(math.log(interval.low)), abs(math.log(interval.high))))
