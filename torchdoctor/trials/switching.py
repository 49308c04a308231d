"""Screening within one launch: fixes that can be switched on and off in a running program.

Blocks of such a launch are compared as launches are (`rounds`), but what they say holds for that
one launch: it chooses whom to confirm by fresh launches, and never confirms anybody itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torchdoctor.records import AppliedFix, SwitchedLaunch
from torchdoctor.trials.launches import Arm, Fixes, Launcher
from torchdoctor.trials.rounds import BASELINE, Round, Slot
from torchdoctor.trials.schedule import FEWEST_PAIRS

PHASE = "switch"
MOST_ROUNDS = 8
FEWEST_ROUNDS = 3
_FEWEST_PAIRS = 3  # of blocks, to judge an arm by
_CEILINGS_SHARE = 0.1  # of the budget left: what a launch for ceilings alone may cost


class Switching(Protocol):
    """Starts the program once with several arms that take turns."""

    def rounds_within(self, arms: int, seconds: float) -> int:
        """How many rounds of so many arms a launch of so many seconds has room for."""

    def __call__(self, arms: Sequence[Fixes], *, rounds: int, seed: int) -> SwitchedLaunch:
        """One launch; a failure of the program is a value, not an exception."""


@dataclass(frozen=True, kw_only=True)
class CeilingTrial:
    """A branch of the tree whose cost is taken away, as an arm of a switching launch."""

    branch: str
    fixes: Fixes

    def arm(self) -> Arm:
        """It takes turns with the others, and is never a candidate."""
        return Arm(key=f"ceiling-{self.branch}", fixes=self.fixes)


def screen_within(
    launcher: Launcher, switching: Switching, arms: Sequence[Arm], reserve_s: float = 0.0
) -> list[Arm]:
    """Compare these arms within one launch, if that costs less than launching each of them once.

    Args:
        launcher: keeps what ran, and the budget.
        switching: starts the program.
        arms: that may be switched.
        reserve_s: seconds that are left to others, besides those to confirm one.

    Returns:
        Those of which enough was seen, or which the program refused. The others (failed, nothing
        came by, out of time) say nothing: they are to be launched.
    """
    baseline_s = launcher.expected_s(launcher.baseline)
    worth_s = sum(launcher.expected_s(arm) for arm in arms) + 2 * baseline_s
    if all(arm.candidate is None for arm in arms):
        worth_s = min(worth_s, _CEILINGS_SHARE * launcher.budget.left())
    left_s = launcher.budget.left() - 2 * FEWEST_PAIRS * baseline_s - reserve_s  # to confirm one
    rounds = min(MOST_ROUNDS, switching.rounds_within(len(arms), min(worth_s, left_s)))
    if rounds < FEWEST_ROUNDS:
        return []
    launcher.planned = launcher.done + 1 + 2 * FEWEST_PAIRS
    found = launcher.switch(
        arms, PHASE, lambda seed: switching([arm.fixes for arm in arms], rounds=rounds, seed=seed)
    )
    for number, arm in enumerate(arms):
        states = found.arms[number] if number < len(found.arms) else []
        arm.refused = next((x.reason for x in states if x.state == "refused"), None)
    usable = {n for n, states in enumerate(found.arms, 1) if _took_effect(states)}
    keys = [arm.key for arm in arms]
    launcher.switched += [
        _without(one, {BASELINE, *(keys[n - 1] for n in usable)}) for one in rounds_of(found, keys)
    ]
    seen = [slot.arm for one in launcher.switched for slot in one.slots]
    return [arm for arm in arms if arm.refused or seen.count(arm.key) >= _FEWEST_PAIRS]


def _took_effect(states: Sequence[AppliedFix]) -> bool:
    return bool(states) and all(one.state == "applied" for one in states)


def rounds_of(found: SwitchedLaunch, keys: Sequence[str]) -> list[Round]:
    """Its blocks as rounds that can be compared; `keys` of the arms, in their order."""
    rounds: dict[int, Round] = {}
    for block in found.blocks:
        one = rounds.setdefault(
            block.round, Round(phase=PHASE, shape="block", flip=block.round % 2 == 1)
        )
        key = BASELINE if block.arm == 0 else keys[block.arm - 1]
        slot = Slot(
            arm=key,
            timing=block.timing,
            began_s=block.began_s,
            ended_s=block.ended_s,
            phase=PHASE,
        )
        one.slots.append(slot)
    return list(rounds.values())


def _without(one: Round, kept: set[str]) -> Round:
    """Without the blocks of arms that did not take effect; ABBA where one arm was alone."""
    slots = [slot for slot in one.slots if slot.arm in kept]
    order = [slot.arm == BASELINE for slot in slots]
    abba = order in ([True, False, False, True], [False, True, True, False])
    return Round(phase=one.phase, shape="abba" if abba else "block", flip=one.flip, slots=slots)
