"""One numeric setting searched by doubling, halving and bisection, not by a grid. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_NEAR = 1.4  # values closer than this are not told apart by their speed


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A setting that may be any whole number between two.

    `today`: the untouched program's, which gains nothing.
    """

    setting: str
    least: int
    most: int
    today: int | None = None


def next_value(gains: Mapping[int, float], ladder: Ladder) -> int | None:
    """The value worth trying next; None: what is known is as good as it gets.

    Beyond the best one as long as there is nothing beyond it, twice as far each time; then between
    it and its neighbours, the better one first.

    Args:
        gains: what each value that was tried gained (log speed-up); not empty.
        ladder: which values there are.
    """
    if ladder.today is not None:
        gains = {**gains, ladder.today: 0.0}
    best = max(gains, key=lambda value: (gains[value], -value))
    above = min((value for value in gains if value > best), default=None)
    below = max((value for value in gains if value < best), default=None)
    if above is None and (value := _rounded(2 * best, ladder)) > best:
        return value
    if below is None and (value := _rounded(best // 2, ladder)) < best:
        return value
    neighbours = [value for value in (above, below) if value is not None]
    for other in sorted(neighbours, key=lambda value: -gains[value]):
        if max(best, other) / max(min(best, other), 1) < _NEAR:
            continue
        value = _rounded(math.sqrt(best * other), ladder)
        if value not in gains and min(best, other) < value < max(best, other):
            return value
    return None


def _rounded(value: float, ladder: Ladder) -> int:
    """The nearest value that there is."""
    return min(max(round(value), ladder.least), ladder.most)
