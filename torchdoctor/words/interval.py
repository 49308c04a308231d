"""A ratio with its interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A ratio and its 95 % interval; speed-up above 1 is faster."""

    estimate: float
    low: float
    high: float

    @property
    def inverse(self) -> Interval:
        """Of the ratio the other way round: a speed-up of 2 is half the time."""
        return Interval(estimate=1 / self.estimate, low=1 / self.high, high=1 / self.low)
