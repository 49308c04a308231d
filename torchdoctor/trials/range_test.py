"""Reads a learning-rate range test: the rates at which losses fall, stop and diverge. Pure.

Smith, "Cyclical Learning Rates for Training Neural Networks", 2015.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchdoctor.words import LaunchTiming, RangeTest

FEWEST_RATES = 40
CAUTION = 10.0  # the loss stopped falling at this many times the rate for a schedule
AGREE = 5.0  # rates of two seeds that lie further apart show nothing
_SMOOTHED = 0.05  # part of all rates that a point of the curve averages
_FALLS = 7.0  # standard errors of a point, as the lowest of all points is picked
_RISES = 0.1  # part of the fall
_MOST_POINTS = 100  # of the curve in a report


@dataclass(frozen=True, kw_only=True)
class RateLosses:
    """A launch: the mean loss after a step with each rate, ascending rates of equal length."""

    own_rate: float
    rates: np.ndarray
    losses: np.ndarray  # NaN: not finite

    @classmethod
    def of(cls, timing: LaunchTiming, settings: Mapping[str, Any]) -> "RateLosses | None":
        """Return the losses of a launch with a range test; None: no optimizer stepped."""
        applied = [x.details for x in timing.fixes if x.state == "applied"]
        details = next((details for details in applied if "own_rate" in details), None)
        if details is None:
            return None
        count = min(len(details["updates"]), len(timing.losses))
        # A loss shows the effect of the step before it.
        updates = np.maximum(np.array(details["updates"][:count], dtype=np.int64) - 1, 0)
        losses = np.array([math.nan if x is None else x for x in timing.losses[:count]])
        last = max(settings["steps"] - 1, 1)
        known = updates <= last
        numbers, losses = np.unique(updates[known]), losses[known]
        with np.errstate(invalid="ignore", over="ignore"):
            means = [losses[updates[known] == number].mean() for number in numbers]
        spread = settings["highest_factor"] / settings["lowest_factor"]
        own = float(details["own_rate"])
        rates = own * settings["lowest_factor"] * spread ** (numbers / last)
        mean_losses = np.array(means, dtype=np.float64)
        mean_losses[~np.isfinite(mean_losses)] = np.nan
        return cls(own_rate=own, rates=rates, losses=mean_losses)


def range_test(launch: RateLosses) -> RangeTest | str:
    """Return the result of one launch, or the reason why it shows nothing."""
    finite = np.flatnonzero(np.isfinite(launch.losses))
    if len(launch.rates) < FEWEST_RATES:
        return f"{len(launch.rates)} rates were tried, at least {FEWEST_RATES} are needed"
    if len(finite) < FEWEST_RATES // 4:
        return "the program gave no finite losses"
    # A missing loss in between is a backward without a scalar loss: it is left out.
    rates, losses = launch.rates[finite], launch.losses[finite]
    broken = int(finite[-1]) + 1
    width = max(3, 2 * round(_SMOOTHED * len(launch.rates) / 2) + 1)
    curve = _smoothed(losses, width)
    lowest = int(curve.argmin())
    apart = np.diff(losses[: max(lowest + 1, width + 1)])  # by neighbours: the trend is left out
    noise = 1.4826 * float(np.median(np.abs(apart - np.median(apart)))) / math.sqrt(2.0)
    error = noise / math.sqrt(width)
    begin = float(np.median(curve[:width]))
    fall = begin - float(curve[lowest])
    falls = fall > _FALLS * error and fall > 1e-9 * abs(begin)
    # If the loss never fell, only a rise far beyond the noise counts.
    rise = max(_FALLS * error, _RISES * fall) if falls else fall + 2 * _FALLS * error
    above = curve > curve[lowest] + rise
    stays = [i for i in range(lowest + 1, len(curve)) if above[i:].all()]
    after = [*rates[stays[:1]], *launch.rates[broken:]]
    diverged = float(after[0]) if after else None
    slope = np.gradient(curve, np.log(rates))[: lowest + 1]
    thinned = np.unique(np.linspace(0, len(rates) - 1, _MOST_POINTS).astype(int))
    stops = float(rates[lowest]) if falls else None
    return RangeTest(
        own_rate=launch.own_rate,
        lowest_rate=float(launch.rates[0]),
        highest_rate=float(launch.rates[-1]),
        steps=len(launch.rates),
        steepest_rate=float(rates[int(slope.argmin())]) if falls else None,
        lowest_loss_rate=stops,
        diverged_rate=diverged,
        # If no rate diverges, the loss might have gone on falling at higher ones.
        max_rate=stops / CAUTION if stops is not None and diverged is not None else None,
        rates=[float(x) for x in rates[thinned]],
        losses=[float(x) for x in curve[thinned]],
    )


def agreed(first: RangeTest, second: RangeTest) -> RangeTest | str:
    """Return two tests as one with the lower rate of each, or that they do not agree."""
    max_rate = None
    if first.max_rate is not None and second.max_rate is not None:
        max_rate, high = sorted([first.max_rate, second.max_rate])
        if high > AGREE * max_rate:
            return (
                f"two seeds do not agree: the loss stops falling at {CAUTION * max_rate:.2g} and "
                f"at {CAUTION * high:.2g}"
            )
    return replace(
        first,
        launches=first.launches + second.launches,
        steepest_rate=_lower(first.steepest_rate, second.steepest_rate),
        lowest_loss_rate=_lower(first.lowest_loss_rate, second.lowest_loss_rate),
        diverged_rate=_lower(first.diverged_rate, second.diverged_rate),
        max_rate=max_rate,
    )


def words(test: RangeTest) -> str:
    """Return the result of a test as sentences."""
    tried = (
        f"Range test: {test.steps} steps with rates from {test.lowest_rate:.1g} to "
        f"{test.highest_rate:.1g}"
    )
    tried += f", {test.launches} seeds" if test.launches > 1 else ", one seed"
    parts = ["the loss fell at none beyond its noise"]
    if test.steepest_rate is not None:
        parts = [
            f"the loss falls fastest at {test.steepest_rate:.2g}",
            f"stops falling at {test.lowest_loss_rate:.2g}",
        ]
    if test.diverged_rate is None:
        parts.append("diverges at none of them")
    else:
        parts.append(f"has begun to diverge at {test.diverged_rate:.2g}")
    return f"{tried}: {', '.join(parts[:-1])} and {parts[-1]}. {_own_rate(test)}"


def _own_rate(test: RangeTest) -> str:
    own = f"The program's own rate is {test.own_rate:.2g}"
    if test.diverged_rate is not None and test.own_rate >= test.diverged_rate:
        return f"{own}: at that the loss diverges here."
    if test.max_rate is None:
        return f"{own}."
    return (
        f"Highest rate for the schedule: {test.max_rate:.2g} (a tenth of "
        f"{CAUTION * test.max_rate:.2g}, where the loss stops falling); the program's own is "
        f"{test.own_rate:.2g}. An order of magnitude, no more: each rate acted for one step."
    )


def _lower(first: float | None, second: float | None) -> float | None:
    return min((x for x in (first, second) if x is not None), default=None)


def _smoothed(losses: np.ndarray, width: int) -> np.ndarray:
    """Return the running mean of the running median of losses, cut to what float64 can add up."""
    half = width // 2
    padded = np.pad(np.clip(losses, -1e300, 1e300), half, mode="reflect")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    again = np.pad(medians / width, half, mode="reflect")
    means: np.ndarray = np.lib.stride_tricks.sliding_window_view(again, width).sum(axis=1)
    return means
