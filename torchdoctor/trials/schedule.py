"""The wall time that is left for launches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

SEED_LAUNCHES = 2  # with other seeds, if only they tell whether training changed
NO_TIME = "the budget left no time for more"  # why a search ended, as reports say it


class BudgetEnded(Exception):  # noqa: N818 - a turn of events, not an error
    """The next launch would not end within the budget."""


class Budget:
    """Wall time for everything that is left to do.

    Args:
        seconds: None for no limit.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._began = clock()

    def now(self) -> float:
        """Return the seconds on the budget's clock; only differences mean something."""
        return self._clock()

    def elapsed(self) -> float:
        """Return the seconds since the budget began."""
        return self._clock() - self._began

    def left(self) -> float:
        """Return the seconds left, infinite without a limit; may be negative."""
        return math.inf if self.seconds is None else self.seconds - self.elapsed()
