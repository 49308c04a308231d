"""A learning-rate range test: losses at rising rates -> where they fall, stop and diverge. Pure.

Smith, "Cyclical Learning Rates for Training Neural Networks", 2015.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchdoctor.words import LaunchTiming, RangeTest

FEWEST_RATES = 40
CAUTION = 10.0  # the loss stopped falling at this many times the rate for a schedule
AGREE = 5.0  # rates of two seeds that lie further apart show nothing
_SMOOTHED = 0.05  # of all rates, in one point of the curve
# Standard errors of a point: the lowest of all is picked and compared with another, medians err by
# a quarter more than means, and at both ends half the losses count.
_FALLS = 7.0
_RISES = 0.1  # of what the loss fell
_MOST_POINTS = 100  # of the curve in a report


@dataclass(frozen=True, kw_only=True)
class RateLosses:
    """One launch: the mean loss after a step with each rate, ascending rates of equal length."""

    own_rate: float
    rates: np.ndarray
    losses: np.ndarray  # NaN: not finite

    @classmethod
    def of(cls, timing: LaunchTiming, settings: Mapping[str, Any]) -> RateLosses | None:
        """Return the losses of a launch with a range test; None: no optimizer stepped."""
        applied = [x.details for x in timing.fixes if x.state == "applied"]
        details = next((details for details in applied if "own_rate" in details), None)
        if details is None:
            return None
        count = min(len(details["updates"]), len(timing.losses))
        # A loss shows what the step before it did.
        updates = np.maximum(np.array(details["updates"][:count], dtype=np.int64) - 1, 0)
        losses = np.array(
            [np.nan if x is None else x for x in timing.losses[:count]], dtype=np.float64
        )
        last = max(settings["steps"] - 1, 1)
        known = updates <= last
        numbers, losses = np.unique(updates[known]), losses[known]
        with np.errstate(invalid="ignore", over="ignore"):
            means = [losses[updates[known] == number].mean() for number in numbers]
        spread = settings["highest_factor"] / settings["lowest_factor"]
        own = float(details["own_rate"])
        rates = own * settings["lowest_factor"] * spread ** (numbers / last)
        found = np.array(means, dtype=np.float64)
        found[~np.isfinite(found)] = np.nan
        return cls(own_rate=own, rates=rates, losses=found)


def range_test(seen: RateLosses) -> RangeTest | str:
    """What one launch shows, or why it shows nothing."""
    finite = np.flatnonzero(np.isfinite(seen.losses))
    if len(seen.rates) < FEWEST_RATES:
        return f"{len(seen.rates)} rates were tried, at least {FEWEST_RATES} are needed"
    if len(finite) < FEWEST_RATES // 4:
        return "the program gave no finite losses"
    # Up to the last finite one; what is missing in between (no scalar loss) is left out.
    rates, losses = seen.rates[finite], seen.losses[finite]
    broken = int(finite[-1]) + 1
    width = max(3, 2 * round(_SMOOTHED * len(seen.rates) / 2) + 1)
    curve = _smoothed(losses, width)
    lowest = int(curve.argmin())
    error = _noise(losses[: max(lowest + 1, width + 1)]) / math.sqrt(width)
    begin = float(np.median(curve[:width]))
    fall = begin - float(curve[lowest])
    falls = fall > _FALLS * error and fall > 1e-9 * abs(begin)
    # Without a fall to measure a rise by, only one far beyond the noise counts.
    high = (
        curve[lowest] + max(_FALLS * error, _RISES * fall) if falls else begin + 2 * _FALLS * error
    )
    above = curve > high
    # It stays above from there on.
    stays = [i for i in range(lowest + 1, len(curve)) if above[i:].all()]
    diverged = None
    if stays:
        diverged = float(rates[stays[0]])
    elif broken < len(seen.rates):
        diverged = float(seen.rates[broken])
    slope = np.gradient(curve, np.log(rates))[: lowest + 1]
    thinned = np.unique(np.linspace(0, len(rates) - 1, _MOST_POINTS).astype(int))
    stops = float(rates[lowest]) if falls else None
    return RangeTest(
        own_rate=seen.own_rate,
        lowest_rate=float(seen.rates[0]),
        highest_rate=float(seen.rates[-1]),
        steps=len(seen.rates),
        steepest_rate=float(rates[int(slope.argmin())]) if falls else None,
        lowest_loss_rate=stops,
        diverged_rate=diverged,
        # Where nothing diverges, nobody knows whether it would have gone on falling.
        max_rate=stops / CAUTION if stops is not None and diverged is not None else None,
        rates=[float(x) for x in rates[thinned]],
        losses=[float(x) for x in curve[thinned]],
    )


def agreed(one: RangeTest, other: RangeTest) -> RangeTest | str:
    """Both launches as one test, the lower rates of each; or that they do not agree."""
    if one.max_rate is not None and other.max_rate is not None:
        low, high = sorted([one.max_rate, other.max_rate])
        if high > AGREE * low:
            return (
                f"two seeds do not agree: the loss stops falling at {CAUTION * low:.2g} and at "
                f"{CAUTION * high:.2g}"
            )
    neither = one.max_rate is None or other.max_rate is None
    return replace(
        one,
        launches=one.launches + other.launches,
        steepest_rate=_lower(one.steepest_rate, other.steepest_rate),
        lowest_loss_rate=_lower(one.lowest_loss_rate, other.lowest_loss_rate),
        diverged_rate=_lower(one.diverged_rate, other.diverged_rate),
        max_rate=None if neither else _lower(one.max_rate, other.max_rate),
    )


def words(found: RangeTest) -> str:
    """What a test shows, as a sentence."""
    tried = (
        f"Range test: {found.steps} steps with rates from {found.lowest_rate:.1g} to "
        f"{found.highest_rate:.1g}"
    )
    tried += f", {found.launches} seeds" if found.launches > 1 else ", one seed"
    parts = ["the loss fell at none beyond its noise"]
    if found.steepest_rate is not None:
        parts = [
            f"the loss falls fastest at {found.steepest_rate:.2g}",
            f"stops falling at {found.lowest_loss_rate:.2g}",
        ]
    if found.diverged_rate is None:
        parts.append("diverges at none of them")
    else:
        parts.append(f"has begun to diverge at {found.diverged_rate:.2g}")
    said = f"{tried}: {', '.join(parts[:-1])} and {parts[-1]}."
    return f"{said} {_own(found)}"


def _own(found: RangeTest) -> str:
    own = f"The program's own rate is {found.own_rate:.2g}"
    if found.diverged_rate is not None and found.own_rate >= found.diverged_rate:
        return f"{own}: at that the loss diverges here."
    if found.max_rate is None:
        return f"{own}."
    return (
        f"Highest rate for the schedule: {found.max_rate:.2g} (a tenth of "
        f"{CAUTION * found.max_rate:.2g}, where the loss stops falling); the program's own is "
        f"{found.own_rate:.2g}. An order of magnitude, no more: each rate acted for one step."
    )


def _lower(one: float | None, other: float | None) -> float | None:
    known = [x for x in (one, other) if x is not None]
    return min(known, default=None)


def _smoothed(losses: np.ndarray, width: int) -> np.ndarray:
    """Running median, then running mean: neither lags, and one bad batch moves neither.

    Shape (losses,); a loss that explodes is cut to what float64 can add up.
    """
    half = width // 2
    padded = np.pad(np.clip(losses, -1e300, 1e300), half, mode="reflect")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    again = np.pad(medians / width, half, mode="reflect")
    means: np.ndarray = np.lib.stride_tricks.sliding_window_view(again, width).sum(axis=1)
    return means


def _noise(losses: np.ndarray) -> float:
    """Standard deviation of one loss around its trend, by its neighbours' differences."""
    apart = np.diff(losses)
    return float(1.4826 * np.median(np.abs(apart - np.median(apart))) / math.sqrt(2.0))
