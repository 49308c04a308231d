"""A ratio with its interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A ratio and its 95 % interval; speed-up above 1 is faster."""

    estimate: float
    low: float
    high: float
