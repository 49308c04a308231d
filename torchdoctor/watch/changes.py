"""Find the moment from which on training is slower, while it runs: lasting shifts of a level.

Libraries of change points (ruptures) divide a whole recording and take its noise for independent:
they cut a steady training, whose noise is not, into pieces. Here a shift counts if nearly all
recent means lie beyond what the earlier ones differ by, which neither spikes nor an evaluation do.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MEAN_S = 5.0  # of training time behind each mean
RECENT, MISSED = 10, 1  # means that must lie beyond the earlier level, but for so many
_EARLIER, _FEWEST = 360, 12  # levels that they are compared with: of half an hour, of a minute
_SPREADS = 5.0
_TO_SIGMA = 1.4826  # of a median of distances, for a normal distribution


@dataclass(frozen=True)
class Shift:
    """A lasting change of a level, in the unit of the series."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """Return how many times as large the level has become."""
        return self.after / self.before


class Level:
    """The level of a positive series, such as the mean time of a step; about 30 us a value."""

    def __init__(self, least: float = 1.12) -> None:
        self._least = math.log(least)  # the smallest ratio that is told
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._levels: deque[float] = deque(maxlen=_EARLIER + RECENT)  # medians of RECENT means

    def add(self, value: float) -> Shift | None:
        """Take the next mean; return the shift that has become certain with it."""
        self._recent.append(math.log(max(value, 1e-9)))
        if len(self._recent) < RECENT:
            return None
        recent = np.sort(self._recent)
        self._levels.append(float(recent[RECENT // 2]))
        if len(self._levels) < _FEWEST + RECENT:
            return None
        levels = np.array(self._levels)
        earlier = levels[:-RECENT]
        level = float(np.median(earlier))
        spread = _TO_SIGMA * float(np.median(np.abs(earlier - level)))
        # A short past may not yet have met the slow part of the noise.
        bound = max(self._least, _SPREADS * spread * (1 + _FEWEST / len(earlier)))
        change = levels[-1] - level
        least = recent[MISSED] - level if change > 0 else level - recent[-1 - MISSED]
        if abs(change) < bound or least < abs(change) / 2:
            return None
        self._levels.clear()
        return Shift(math.exp(level), math.exp(levels[-1]))


def begins_at(values: NDArray[np.float64], shift: Shift) -> int:
    """Return the index from which on the values, of which the last are shifted, have the new level.

    It is where the cumulative sum of the distances to the middle of both levels is furthest from
    the direction of the shift; a single spike counts no more than the shift itself.
    """
    middle = (shift.before + shift.after) / 2
    half = abs(shift.after - shift.before) / 2
    distances = np.clip(values - middle, -half, half) * math.copysign(1.0, shift.after - middle)
    return int(np.argmin(np.concatenate([[0.0], np.cumsum(distances)])))
