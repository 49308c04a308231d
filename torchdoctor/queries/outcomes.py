"""What trials and replays leave in a report: the ceilings, and the trial that leads. Pure."""

import math
from collections.abc import Mapping, Sequence

from torchdoctor.schema import BRANCHES, Ceiling, Interval, Trial, TriedCeiling, WhatIf
from torchdoctor.schema.figures import says_something

PROOF_PAIRS = 3  # of launches, that prove a speed-up whatever its size
STRONG_PAIRS, STRONG_SPEEDUP = 2, 1.5  # or so many, if the interval begins here
_A_LITTLE = 0.02  # a smaller gain is not worth mentioning before it is proven


def with_measured(
    ceilings: Mapping[str, Ceiling | None], tried: Sequence[TriedCeiling]
) -> dict[str, Ceiling | None]:
    """Return the ceilings with those of whole branches replaced where a trial has decided them."""
    return dict(ceilings) | {
        trial.branch: Ceiling(speedup=trial.speedup)
        for trial in tried
        if trial.whole and trial.decided and trial.speedup is not None
    }


def replay_ceilings(what_if: WhatIf | None) -> dict[str, Ceiling | None]:
    """Return a ceiling for each branch; None: not replayed, or the replay is not believed.

    The interval is no confidence interval: `low` allows for the error with which the replay
    reproduces the measured step, `high` also for waits of unknown cause that could go.
    """
    ceilings: dict[str, Ceiling | None] = dict.fromkeys(BRANCHES)
    if what_if is None or not what_if.steps or not what_if.reproduced:
        return ceilings
    error = abs(what_if.replayed_s / what_if.measured_s - 1.0)
    for branch in BRANCHES:
        replayed = what_if.branches.get(branch)
        speedup = what_if.speedup(branch)
        if replayed is None or speedup is None or replayed.lowest_s <= 0:
            continue
        high = what_if.replayed_s / replayed.lowest_s * (1.0 + error)
        interval = Interval(estimate=speedup, low=max(1.0, speedup / (1.0 + error)), high=high)
        ceilings[branch] = Ceiling(speedup=interval, source="replay")
    return ceilings


def value_of(trial: Trial) -> float:
    """Return what ranks a trial: its expected speed-up, or in older reports what was measured."""
    if trial.expected is not None:
        return trial.expected
    interval = trial.speedup
    if interval is None or (trial.pairs > 1 and not says_something(interval)):
        return 1.0  # an interval from 0.1 to 3000 says nothing
    return min(interval.estimate, trial.at_most or math.inf)


def most_promising(trials: Sequence[Trial]) -> Trial | None:
    """Return the largest of the open trials that looked faster and do not change training."""
    # Older reports call "faster" what too few pairs prove.
    unproven = ("unclear", "looks-faster", "faster")
    undecided = []
    for trial in trials:
        looked_faster = trial.speedup is not None and trial.speedup.estimate > 1
        is_open = trial.verdict in unproven and not is_proven(trial.speedup, trial.pairs)
        if looked_faster and is_open and trial.numerics != "changed":
            undecided.append(trial)
    best = max(undecided, key=value_of, default=None)
    return best if best is not None and value_of(best) > 1 + _A_LITTLE else None


def is_proven(speedup: Interval | None, pairs: int) -> bool:
    """Return True if so many pairs of launches prove that a program is faster.

    At least three pairs prove it, or two whose interval begins at 1.5.
    """
    if speedup is None or speedup.low <= 1:
        return False
    return pairs >= PROOF_PAIRS or (pairs >= STRONG_PAIRS and speedup.low >= STRONG_SPEEDUP)
