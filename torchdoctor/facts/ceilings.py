"""What-ifs of a trace -> the ceilings of a report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchdoctor.words import BRANCHES, Ceiling, Interval, TriedCeiling
from torchdoctor.words.traced import WhatIf


def with_measured(
    ceilings: Mapping[str, Ceiling | None], tried: Sequence[TriedCeiling]
) -> dict[str, Ceiling | None]:
    """What was tried goes before what was replayed.

    A part of a branch is not its ceiling, and what was not decided is not measured.
    """
    found = dict(ceilings)
    for one in tried:
        if one.whole and one.decided and one.speedup is not None:
            found[one.branch] = Ceiling(speedup=one.speedup)
    return found


def replay_ceilings(what_if: WhatIf | None) -> dict[str, Ceiling | None]:
    """A ceiling for each branch of the tree; None: not replayed, or the replay is not believed.

    The interval is no confidence interval: `low` allows for the error with which the replay
    reproduces the measured step, `high` also for waits of unknown cause that could go.
    """
    ceilings: dict[str, Ceiling | None] = dict.fromkeys(BRANCHES)
    if what_if is None or not what_if.steps or not what_if.reproduced:
        return ceilings
    error = abs(what_if.replayed_s / what_if.measured_s - 1.0)
    for branch in BRANCHES:
        replayed, speedup = what_if.branches.get(branch), what_if.speedup(branch)
        if replayed is None or speedup is None or replayed.lowest_s <= 0:
            continue
        interval = Interval(
            estimate=speedup,
            low=max(1.0, speedup / (1.0 + error)),
            high=what_if.replayed_s / replayed.lowest_s * (1.0 + error),
        )
        ceilings[branch] = Ceiling(speedup=interval, source="replay")
    return ceilings
