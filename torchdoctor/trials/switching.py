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
from torchdoctor.trials.schedule import DECISIVE, FEWEST_PAIRS
from torchdoctor.words import AppliedFix, SwitchedLaunch

PHASE = "switch"
MOST_ROUNDS = 8
FEWEST_ROUNDS = 3
_FEWEST_PAIRS = 3  # of blocks, to judge an arm by
_FAR_SLOWER = 2.0  # times the untouched step
_MOST_ATTEMPTS = 3  # launches, where ceilings bring the program to its end
_CEILINGS_SHARE = 0.1  # of the budget left: what ceilings may cost


class Switching(Protocol):
    """Starts the program once with several arms that take turns."""

    def rounds_within(self, arms: Sequence[Fixes], seconds: float) -> int:
        """How many rounds of these arms a launch of so many seconds has room for."""

    def __call__(self, arms: Sequence[Fixes], *, rounds: int, seed: int) -> SwitchedLaunch:
        """One launch; a failure of the program is a value, not an exception."""


def screen_within(
    launcher: Launcher,
    switching: Switching,
    arms: Sequence[Arm],
    ceilings: Sequence[Arm] = (),
    reserve_s: float = 0.0,
) -> list[Arm]:
    """Compare these arms within one launch, if that costs less than launching each of them once.

    A launch that a ceiling brings to its end is repeated without that ceiling.

    Args:
        launcher: keeps what ran, and the budget.
        switching: starts the program.
        arms: that may be switched.
        ceilings: costs that are taken away, the most telling first; as many as cost a tenth of
            the budget that is left.
        reserve_s: seconds that are left to others, besides those to confirm one.

    Returns:
        Those `arms` of which enough was seen, or which the program refused. The others (failed,
        nothing came by, out of time) say nothing: they are to be launched.
    """
    for _ in range(_MOST_ATTEMPTS):
        rest = [arm for arm in arms if not _is_decided(launcher, arm)]
        alive = [arm for arm in ceilings if not _is_decided(launcher, arm)]
        chosen, rounds = _plan(launcher, switching, rest, alive, reserve_s)
        turns = [*rest, *chosen]
        if rounds < FEWEST_ROUNDS or not turns:
            break
        if not _repeat(launcher, switching, turns, chosen, rounds):
            break
    return [arm for arm in arms if _is_decided(launcher, arm)]


def _plan(
    launcher: Launcher,
    switching: Switching,
    arms: Sequence[Arm],
    ceilings: Sequence[Arm],
    reserve_s: float,
) -> tuple[list[Arm], int]:
    """How many of the ceilings, from the first, and how many rounds."""
    baseline_s, left_s = launcher.expected_s(launcher.baseline), launcher.budget.left()
    pairs = DECISIVE if launcher.pairs_up else FEWEST_PAIRS  # to confirm one
    free_s = left_s - 2 * pairs * baseline_s - reserve_s
    share_s = _CEILINGS_SHARE * left_s
    worth_s = sum(launcher.expected_s(arm) for arm in arms) + 2 * baseline_s if arms else 0.0
    least = _rounds(switching, arms, min(worth_s, free_s)) if arms else 0
    for count in range(len(ceilings), 0, -1):
        turns = [*arms, *ceilings[:count]]
        rounds = _rounds(switching, turns, min(worth_s + share_s, free_s))
        if rounds >= max(least, FEWEST_ROUNDS):
            return list(ceilings[:count]), rounds
    return [], least


def _rounds(switching: Switching, arms: Sequence[Arm], seconds: float) -> int:
    if math.isinf(seconds):
        return MOST_ROUNDS
    return min(MOST_ROUNDS, switching.rounds_within([arm.fixes for arm in arms], seconds))


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
