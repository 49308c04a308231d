"""The patched program against the untouched one: does the edit do what the run-time fix did?"""

from __future__ import annotations

import math
from dataclasses import replace

from torchdoctor.trials import compare
from torchdoctor.trials.arm_specs import PATCH
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.launches import Launcher, Plan
from torchdoctor.trials.schedule import FEWEST_PAIRS, BudgetEnded, plan_confirmation
from torchdoctor.words import Interval, PatchTrial
from torchdoctor.words.figures import counted

_MINUTES_APART = 0.05  # between the bounds of two speed-ups that are the same
_FEWEST_PAIRS = 2  # have an interval; what they repeat is confirmed already
_RESERVED_OF = 2  # times the reserve must be left, or there is none


def reserve_s(baseline_s: float, left_s: float) -> float:
    """What to keep for the patch while fixes are confirmed; nothing where little is left."""
    pairs_s = 2 * FEWEST_PAIRS * baseline_s
    return pairs_s if math.isfinite(left_s) and left_s >= _RESERVED_OF * pairs_s else 0.0


def patch_arm(like: Arm, setup_s: float) -> Arm:
    """The patched program without any fix.

    Args:
        like: the fixes that it makes permanent.
        setup_s: what starting them takes by now: what was compiled lies in the cache.
    """
    return Arm(key=PATCH, fixes=[(PATCH, {})], facts=replace(like.facts, setup_s=setup_s))


def measure_patch(launcher: Launcher, arm: Arm, like: Arm) -> None:
    """Pairs of the untouched and the patched program, as many as the budget allows.

    Args:
        launcher: launches `[(PATCH, {})]` as the patched program without any fix.
        arm: of `patch_arm`; holds what was measured, however this ends.
        like: the fixes that the patch makes permanent, as they were measured.

    Raises:
        BudgetEnded: not even two pairs fit, or launches became slower than planned.
    """
    plain, expected = launcher.expected_s(launcher.baseline), launcher.expected_s(like)
    plan = plan_confirmation([expected], plain, launcher.budget.left())
    if plan.pairs < _FEWEST_PAIRS:
        raise BudgetEnded
    pair = [launcher.baseline, arm]
    launcher.plan = Plan(phase=PATCH, unit="pair", most=plan.pairs, arms=pair)
    launcher.abba(arm, PATCH, plan.pairs)


def patch_result(evidence: Evidence, arm: Arm | None, why: str | None) -> PatchTrial | None:
    """What was measured of the patch, or why nothing was; None: no patch was to be measured.

    `why`: nothing, or less than wished, was measured.
    """
    if arm is None:
        return PatchTrial(reason=why) if why else None
    one = evidence.measured(arm)
    pairs, reason = len(one.differences), arm.failed or arm.refused
    if reason is None and pairs < FEWEST_PAIRS:
        reason = f"only {counted(pairs, 'pair')}: {why}" if pairs and why else why
    return PatchTrial(
        speedup=compare.interval(one.differences) if arm.alive else None,
        numerics=one.numerics.classification,
        numerics_reason=one.numerics.reason,
        pairs=pairs,
        reason=reason,
    )


def disagreement(fixes: Interval | None, patch: Interval | None) -> str | None:
    """A sentence where patch and run-time fixes differ by more than both intervals and the machine.

    Each was measured beside the untouched program, but minutes apart: the load of the machine may
    help one of two programs more than the other.
    """
    if fixes is None or patch is None:
        return None
    gap = max(patch.low / fixes.high, fixes.low / patch.high)
    if gap <= 1 + _MINUTES_APART:
        return None
    return (
        f"The patched program runs {patch.estimate:.2f}x ({patch.low:.2f}-{patch.high:.2f}), the "
        f"fixes applied at run time {fixes.estimate:.2f}x ({fixes.low:.2f}-{fixes.high:.2f}): the "
        "edit does not do quite the same, or the load of the machine changed in between. The "
        "patch's figure is that of the edit."
    )
