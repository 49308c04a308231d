"""Screening within one launch: fixes that can be switched on and off in a running program.

Blocks of such a launch hold for that launch alone: they choose which fixes fresh launches confirm,
and confirm none themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from torchdoctor.launch.launch_spec import BASELINE
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.ceilings import abandon
from torchdoctor.trials.log import Log, Series
from torchdoctor.words import AppliedFix

FEWEST_ROUNDS = 3
_FEWEST_PAIRS = 3  # pairs of blocks that judge an arm
_FAR_SLOWER = 2.0  # times the untouched step
_MOST_ATTEMPTS = 3  # launches, if ceilings end the program
_CEILINGS_SHARE = 0.1  # part of the budget that ceilings may cost


def switch_arms(log: Log, arms: Sequence[Arm], ceilings: Sequence[Arm], rounds: int) -> None:
    """Compare these arms, and costs that are taken away, within one launch.

    A launch that a ceiling brings to its end is repeated without that ceiling.

    Args:
        log: measures them.
        arms: fixes that may be switched.
        ceilings: costs that are taken away, the most telling first; as many as cost a tenth of
            the budget.
        rounds: how often every arm has its turn.
    """
    for _ in range(_MOST_ATTEMPTS):
        undecided = [arm for arm in arms if not _is_decided(log, arm)]
        alive = [arm for arm in ceilings if not _is_decided(log, arm)]
        chosen = affordable_ceilings(log, undecided, alive, rounds)
        turns = [*undecided, *chosen]
        if not turns or not _repeat(log, turns, chosen, rounds):
            return


def switch_s(log: Log, arms: Sequence[Arm], rounds: int) -> float:
    """Return the seconds of a launch in which these arms take turns; infinite: none has room."""
    return log.engine.expected_switch_s([arm.spec for arm in arms], rounds)


def affordable_ceilings(
    log: Log, arms: Sequence[Arm], ceilings: Sequence[Arm], rounds: int = FEWEST_ROUNDS
) -> list[Arm]:
    """Return the ceilings, from the first, that cost a tenth of the whole budget at most."""
    most_s = min(_CEILINGS_SHARE * (log.budget.seconds or math.inf), log.budget.left())
    without_s = switch_s(log, arms, rounds) if arms else 0.0
    for count in range(len(ceilings), 0, -1):
        with_s = switch_s(log, [*arms, *ceilings[:count]], rounds)
        if not math.isinf(with_s) and with_s - without_s <= most_s:
            return list(ceilings[:count])
    return []


def _repeat(log: Log, turns: Sequence[Arm], ceilings: Sequence[Arm], rounds: int) -> bool:
    """Launch once; return True if another launch without some ceiling makes sense."""
    launch = log.switch(turns, rounds)
    broken = abandon(launch, turns, ceilings, _FEWEST_PAIRS)
    kept = {0, *(n for n, states in enumerate(launch.arms, 1) if _took_effect(states))}
    blocks = [block for block in launch.blocks if block.arm in kept]
    log.switched.append(Series(keys=[BASELINE, *(arm.key for arm in turns)], blocks=blocks))
    return broken


def _is_decided(log: Log, arm: Arm) -> bool:
    own = [block for series in log.switched for block in series.of(arm.key)]
    if arm.refused or len(own) >= _FEWEST_PAIRS:
        return True
    # A block that takes twice as long decides alone: a launch would take twice as long as well.
    plain = [x for series in log.switched for block in series.of(BASELINE) for x in block.step_s]
    slower = _FAR_SLOWER * median(plain) if plain else math.inf
    return bool(own) and all(median(block.step_s) > slower for block in own)


def _took_effect(states: Sequence[AppliedFix]) -> bool:
    return bool(states) and all(state.state == "applied" for state in states)
