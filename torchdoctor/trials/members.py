"""Which of several fixes make up a set."""

from __future__ import annotations

from collections.abc import Sequence

from torchdoctor.trials.arms import Arm


def adding(arms: Sequence[Arm]) -> list[Arm]:
    """Those that do something that the better ones before them do not do as well."""
    chosen: list[Arm] = []
    done: set[str] = set()
    for arm in arms:
        names = {fix for fix, _ in arm.fixes}
        if not names <= done:
            chosen.append(arm)
            done |= names | arm.facts.includes
    return chosen


def one_of_each(arms: Sequence[Arm]) -> list[Arm]:
    """Of those that work on the same phases of the step the best: they rather compete than add up.

    Workers and a cache both end the same wait, and each worker fills a cache of its own.
    """
    chosen: list[Arm] = []
    for arm in arms:
        if not any(_compete(arm.facts.phases, one.facts.phases) for one in chosen):
            chosen.append(arm)
    return chosen


def _compete(phases: frozenset[str], others: frozenset[str]) -> bool:
    return bool(phases and others) and (phases <= others or others <= phases)
