"""Screening within one launch: fixes that can be switched on and off in a running program.

Blocks of such a launch are compared as launches are (`rounds`), but what they say holds for that
one launch: it chooses whom to confirm by fresh launches, and never confirms anybody itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from torchdoctor.trials.arms import Arm, Fixes
from torchdoctor.trials.ceilings import abandon
from torchdoctor.trials.launches import Launcher
from torchdoctor.trials.rounds import BASELINE, Round, Slot, as_launch
from torchdoctor.words import AppliedFix, SwitchedLaunch

PHASE = "switch"
FEWEST_ROUNDS = 3
_FEWEST_PAIRS = 3  # of blocks, to judge an arm by
_FAR_SLOWER = 2.0  # times the untouched step
_MOST_ATTEMPTS = 3  # launches, where ceilings bring the program to its end
_LONGEST_S = 600.0  # of a launch
_CEILINGS_SHARE = 0.1  # of the budget left: what ceilings may cost


class Switching(Protocol):
    """Starts the program once with several arms that take turns."""

    def rounds_within(self, arms: Sequence[Fixes], seconds: float) -> int:
        """How many rounds of these arms a launch of so many seconds has room for."""

    def __call__(self, arms: Sequence[Fixes], *, rounds: int, seed: int) -> SwitchedLaunch:
        """One launch; a failure of the program is a value, not an exception."""


def switch_arms(
    launcher: Launcher,
    switching: Switching,
    arms: Sequence[Arm],
    ceilings: Sequence[Arm],
    rounds: int,
) -> None:
    """Compare these arms, and costs that are taken away, within one launch.

    A launch that a ceiling brings to its end is repeated without that ceiling.

    Args:
        launcher: keeps what ran, and the budget.
        switching: starts the program.
        arms: that may be switched.
        ceilings: costs that are taken away, the most telling first; as many as cost a tenth of
            the budget.
        rounds: of all arms.
    """
    for _ in range(_MOST_ATTEMPTS):
        rest = [arm for arm in arms if not _is_decided(launcher, arm)]
        alive = [arm for arm in ceilings if not _is_decided(launcher, arm)]
        chosen = affordable_ceilings(launcher, switching, rest, alive, rounds)
        turns = [*rest, *chosen]
        if not turns or not _repeat(launcher, switching, turns, chosen, rounds):
            return


def switch_s(switching: Switching, arms: Sequence[Arm], rounds: int) -> float:
    """Return the seconds of a launch in which these arms take turns; infinite: none has room."""
    fixes = [arm.fixes for arm in arms]
    least, most = 0.0, _LONGEST_S
    if switching.rounds_within(fixes, most) < rounds:
        return math.inf
    while most - least > 0.05:
        middle = (least + most) / 2
        enough = switching.rounds_within(fixes, middle) >= rounds
        least, most = (least, middle) if enough else (middle, most)
    return most


def affordable_ceilings(
    launcher: Launcher,
    switching: Switching,
    arms: Sequence[Arm],
    ceilings: Sequence[Arm],
    rounds: int = FEWEST_ROUNDS,
) -> list[Arm]:
    """Return the ceilings, from the first, that cost a tenth of the whole budget at most."""
    budget_s = launcher.budget.seconds or math.inf
    most_s = min(_CEILINGS_SHARE * budget_s, launcher.budget.left())
    without_s = switch_s(switching, arms, rounds) if arms else 0.0
    for count in range(len(ceilings), 0, -1):
        turns = [*arms, *ceilings[:count]]
        if switch_s(switching, turns, rounds) - without_s <= most_s:
            return list(ceilings[:count])
    return []


def _repeat(
    launcher: Launcher,
    switching: Switching,
    turns: Sequence[Arm],
    ceilings: Sequence[Arm],
    rounds: int,
) -> bool:
    """One launch; whether another one without some ceiling makes sense."""
    found = launcher.switch(
        turns,
        PHASE,
        lambda seed: switching([arm.fixes for arm in turns], rounds=rounds, seed=seed),
    )
    for number, arm in enumerate(turns):
        states = found.arms[number] if number < len(found.arms) else []
        arm.refused = next((x.reason for x in states if x.state == "refused"), None)
    broken = abandon(found, turns, ceilings, _FEWEST_PAIRS)
    usable = {n for n, states in enumerate(found.arms, 1) if _took_effect(states)}
    keys = [arm.key for arm in turns]
    launcher.switched += [
        _without(one, {BASELINE, *(keys[n - 1] for n in usable)}) for one in rounds_of(found, keys)
    ]
    return broken


def _is_decided(launcher: Launcher, arm: Arm) -> bool:
    slots = [slot for one in launcher.switched for slot in one.slots]
    own = [slot.timing for slot in slots if slot.arm == arm.key]
    if arm.refused or len(own) >= _FEWEST_PAIRS:
        return True
    # One block is enough of what takes twice as long: its launches would as well.
    plain = [slot.timing.step_s for slot in slots if slot.arm == BASELINE]
    if not own or not plain:
        return False
    usual_s = median(step for steps in plain for step in steps)
    return all(median(timing.step_s) > _FAR_SLOWER * usual_s for timing in own)


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
            timing=as_launch(block),
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
