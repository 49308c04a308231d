"""What a gate that proves little would have needed: pairs, and time for them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from torchdoctor.facts.counts import counted
from torchdoctor.gate.decision import FEWEST_PAIRS, LOOKS, pairs_for, shows

_TO_SPARE = 1.15  # of the time: pairs do not all take as long
_STEP_S, _LONG_S = 15.0, 120.0  # what a budget is rounded up to; above the second to minutes


def budget_option(needed_s: float) -> str:
    """`--budget` for what takes about so many seconds: with some to spare, rounded up."""
    with_spare = _TO_SPARE * needed_s
    if with_spare > _LONG_S:
        return f"--budget {math.ceil(with_spare / 60.0)}m"
    return f"--budget {math.ceil(with_spare / _STEP_S) * _STEP_S:.0f}s"


def too_few_pairs(pairs: int, spent_s: float, pair_s: float) -> str:
    """Why a gate ended undecided, and with how much time it would not have.

    Args:
        pairs: that were measured.
        spent_s: before the first pair.
        pair_s: that one pair takes.
    """
    needed_s = spent_s + FEWEST_PAIRS * pair_s
    return (
        f"The time was up after {counted(pairs, 'pair')} of launches, and {FEWEST_PAIRS} are "
        f"needed, which takes about {rounded(needed_s)}: give it more "
        f"({budget_option(needed_s)}), or less to do with --steps."
    )


def decides(
    differences: Sequence[float], tolerance: float, state: str, spent_s: float, pair_s: float
) -> str:
    """What would decide a pass that proves little; "" where that cannot be computed.

    Args:
        differences: of the pairs.
        tolerance: accepted slow-down, as a share.
        state: "perhaps slower" (asks for pairs that prove the measured slow-down) or "not seen
            well enough" (for those that prove one of the tolerance).
        spent_s: before the first pair.
        pair_s: that one pair takes.
    """
    if len(differences) < 2 or state not in ("perhaps slower", "not seen well enough"):
        return ""
    measured = state == "perhaps slower"
    size = max(math.expm1(fmean(differences)) if measured else tolerance, 1e-3)
    named = f"a difference of this size ({_percent(size)})"
    if not measured:
        named = f"a slow-down of the tolerance ({_percent(size)})"
    pairs = pairs_for(differences, size)
    if pairs is None:
        least = shows(differences, LOOKS[-1])
        return (
            f"Pairs vary so much here that even {LOOKS[-1]}, the most that a gate measures, would "
            f"prove only one of {_percent(least)}: measure on a quieter machine (torchdoctor env "
            "--noise), or accept more with --tolerance."
        )
    pairs = max(pairs, len(differences) + 1)
    needed_s = spent_s + pairs * pair_s
    return (
        f"About {pairs} pairs would prove {named} four times in five, {len(differences)} were "
        f"measured: that takes about {rounded(needed_s)} ({budget_option(needed_s)})."
    )


def rounded(seconds: float) -> str:
    """A time that is known roughly: "75 s", "4 min"."""
    if seconds > _LONG_S:
        return f"{math.ceil(seconds / 60.0)} min"
    return f"{math.ceil(seconds / 5.0) * 5} s"


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share > 0.1 else 1}f} %"
