"""Screening within one launch: fixes that can be switched on and off in a running program.

Blocks of such a launch are compared as launches are (`rounds`), but their result holds for that
launch alone: it chooses which fixes fresh launches confirm, and confirms none itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from torchdoctor.launch.launch_spec import BASELINE
from torchdoctor.trials.arms import Arm, Fixes
from torchdoctor.trials.ceilings import abandon
from torchdoctor.trials.launches import Launcher
from torchdoctor.trials.rounds import Round, Slot, as_launch
from torchdoctor.words import AppliedFix, SwitchedLaunch

PHASE = "switch"
FEWEST_ROUNDS = 3
_FEWEST_PAIRS = 3  # pairs of blocks that judge an arm
_FAR_SLOWER = 2.0  # times the untouched step
_MOST_ATTEMPTS = 3  # launches, if ceilings end the program
_LONGEST_S = 600.0  # a launch
_CEILINGS_SHARE = 0.1  # part of the budget that ceilings may cost


class Switching(Protocol):
    """Starts the program once with several arms that take turns."""

    def rounds_within(self, arms: Sequence[Fixes], seconds: float) -> int:
        """Return how many rounds of these arms a launch of so many seconds has room for."""

    def __call__(self, arms: Sequence[Fixes], *, rounds: int, seed: int) -> SwitchedLaunch:
        """Launch once; a failure of the program is a value, not an exception."""


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
        arms: fixes that may be switched.
        ceilings: costs that are taken away, the most telling first; as many as cost a tenth of
            the budget.
        rounds: how often every arm has its turn.
    """
    for _ in range(_MOST_ATTEMPTS):
        undecided = [arm for arm in arms if not _is_decided(launcher, arm)]
        alive = [arm for arm in ceilings if not _is_decided(launcher, arm)]
        chosen = affordable_ceilings(launcher, switching, undecided, alive, rounds)
        turns = [*undecided, *chosen]
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
    """Launch once; return True if another launch without some ceiling makes sense."""
    launch = launcher.switch(
        turns,
        PHASE,
        lambda seed: switching([arm.fixes for arm in turns], rounds=rounds, seed=seed),
    )
    for number, arm in enumerate(turns):
        states = launch.arms[number] if number < len(launch.arms) else []
        arm.refused = next((x.reason for x in states if x.state == "refused"), None)
    broken = abandon(launch, turns, ceilings, _FEWEST_PAIRS)
    usable = {n for n, states in enumerate(launch.arms, 1) if _took_effect(states)}
    keys = [arm.key for arm in turns]
    launcher.switched += [
        _only(each, {BASELINE, *(keys[n - 1] for n in usable)}) for each in rounds_of(launch, keys)
    ]
    return broken


def _is_decided(launcher: Launcher, arm: Arm) -> bool:
    slots = [slot for each in launcher.switched for slot in each.slots]
    own = [slot.timing for slot in slots if slot.arm == arm.key]
    if arm.refused or len(own) >= _FEWEST_PAIRS:
        return True
    # A block that takes twice as long decides alone: a launch would take twice as long as well.
    plain = [slot.timing.step_s for slot in slots if slot.arm == BASELINE]
    if not own or not plain:
        return False
    usual_s = median(step for steps in plain for step in steps)
    return all(median(timing.step_s) > _FAR_SLOWER * usual_s for timing in own)


def _took_effect(states: Sequence[AppliedFix]) -> bool:
    return bool(states) and all(state.state == "applied" for state in states)


def rounds_of(launch: SwitchedLaunch, keys: Sequence[str]) -> list[Round]:
    """Return the blocks of a launch as rounds; `keys` of the arms, in their order."""
    rounds: dict[int, Round] = {}
    for block in launch.blocks:
        its_round = rounds.setdefault(
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
        its_round.slots.append(slot)
    return list(rounds.values())


def _only(whole: Round, kept: set[str]) -> Round:
    """Return a round with the blocks of these arms; it is ABBA if one arm is left alone."""
    slots = [slot for slot in whole.slots if slot.arm in kept]
    order = [slot.arm == BASELINE for slot in slots]
    abba = order in ([True, False, False, True], [False, True, True, False])
    return Round(phase=whole.phase, shape="abba" if abba else "block", flip=whole.flip, slots=slots)
