"""The trial that a report names where no fix is proven to be faster. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchdoctor.words import Trial
from torchdoctor.words.figures import says_something

_A_LITTLE = 0.02  # a smaller gain is not worth mentioning before it is proven


def value_of(trial: Trial) -> float:
    """Return what ranks a trial: the speed-up that was measured, but never more than it can be."""
    interval = trial.speedup
    if interval is None or (trial.pairs > 1 and not says_something(interval)):
        return 1.0  # an interval from 0.1 to 3000 says nothing
    return min(interval.estimate, trial.at_most or math.inf)


def most_promising(trials: Sequence[Trial]) -> Trial | None:
    """Return the largest of the open trials that looked faster and do not change training."""
    open_trials = [
        trial for trial in trials if trial.verdict == "unclear" and trial.numerics != "changed"
    ]
    best = max(open_trials, key=value_of, default=None)
    return best if best is not None and value_of(best) > 1 + _A_LITTLE else None
