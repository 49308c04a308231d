"""Ceilings: costs that are taken away in a switching launch, to see what that gives at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from torchdoctor.trials.arms import Arm, Fixes
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.rounds import BASELINE, Round
from torchdoctor.words import Interval, StepStatistics, SwitchedLaunch, TriedCeiling

_NOTHING = 1.02  # an interval that ends below is no gain
_SLOWER = 0.98  # one that ends below: answering costs more than what is taken away
_OTHER_CONDITIONS = 0.6  # untouched blocks / observed step: with less they are not alike
_HIGH = 0.2  # of the step: a share that would make one look for a gain
_NO_BLOCKS = (
    "Blocks of this program's steps cannot be compared within one launch: several processes train, "
    "a backward alone separates steps, or these come in kinds without a regular cycle."
)
_DECIDED = ("gain", "hidden", "nothing")
_OUT_OF_TIME = "The budget left no time for it."


@dataclass(frozen=True, kw_only=True)
class CeilingTrial:
    """A cost that is taken away, as an arm of a switching launch."""

    ceiling: str  # its id
    branch: str
    fixes: Fixes
    removes: str = ""
    share: float | None = None  # of the step
    whole: bool = True  # it is all of its branch

    def arm(self) -> Arm:
        """It takes turns with the others, and is never a candidate."""
        return Arm(key=f"ceiling-{self.ceiling}", fixes=self.fixes)


def abandon(
    found: SwitchedLaunch, arms: Sequence[Arm], ceilings: Sequence[Arm], enough: int
) -> bool:
    """Give up the ceilings that did not come off in this launch, each with its reason.

    Args:
        found: the launch.
        arms: all that took turns.
        ceilings: those of them that are ceilings.
        enough: blocks, to judge one by: what was seen so often before the end stands.

    Returns:
        Whether one of them, or what one left behind, ended the program: then the launch is worth
        repeating without it.
    """
    for number, arm in enumerate(arms):
        states = found.arms[number] if number < len(found.arms) else []
        lacking = next((x for x in states if x.state in ("refused", "failed")), None)
        if arm in ceilings and lacking is not None:
            arm.refused = lacking.reason or "It could not be tried."
    if found.failed_in is None or not ceilings:
        return False
    why = found.reason or "The program failed."
    seen = Counter(block.arm for block in found.blocks)
    if found.failed_in:
        arm = arms[found.failed_in - 1]
        if arm not in ceilings or seen[found.failed_in] >= enough:
            return False
        if found.ended == "timed-out" and seen[found.failed_in]:
            return False  # it went on with it before: the machine is slow, or the launch was long
        arm.refused = f"The program did not go on with it: {why}"
        return True
    if found.ended == "timed-out":
        return False  # a machine that is slow at the moment; nothing was on that it could wait for
    # Nothing was on: what a ceiling had left behind may be why. It is never worth another try.
    guilty = [arm for n, arm in enumerate(arms, 1) if arm in ceilings and 0 < seen[n] < enough]
    for arm in guilty:
        arm.refused = arm.refused or f"The program failed after it: {why}"
    return bool(guilty)


def tried(
    trials: Sequence[CeilingTrial],
    arms: Sequence[Arm],
    evidence: Evidence,
    looked: set[str] | None,
    conditions: float | None = None,
) -> list[TriedCeiling]:
    """What became of each.

    Args:
        trials: in the order of `arms`.
        arms: their arms.
        evidence: what the blocks say.
        looked: keys of the arms that a launch was started with; None: there can be none.
        conditions: the untouched step in their blocks / the observed one.
    """
    found = []
    for trial, arm in zip(trials, arms, strict=True):
        speedup = evidence.ceiling(arm)
        verdict = _verdict(speedup, trial.share)
        reason = arm.refused or "Too few of its blocks were seen." if speedup is None else None
        if conditions is not None and conditions < _OTHER_CONDITIONS and verdict in _DECIDED:
            verdict = "unclear"
            reason = f"The untouched step took {conditions:.2f} times as long as when observed."
        if looked is None or arm.key not in looked:
            verdict = "not-tried"
            reason = _NO_BLOCKS if looked is None else _OUT_OF_TIME
        found.append(
            TriedCeiling(
                ceiling=trial.ceiling,
                branch=trial.branch,
                removes=trial.removes,
                share=trial.share,
                speedup=speedup,
                verdict=verdict,
                whole=trial.whole,
                reason=reason,
                pairs=len(evidence.paired(arm, "switch")) if speedup is not None else 0,
            )
        )
    return found


def conditions(rounds: Sequence[Round], steps: StepStatistics | None) -> float | None:
    """The untouched step in blocks of one launch / the observed one; None: not known.

    Of the blocks' mean steps the median, or where steps come in two kinds the mean: within a block
    a program that does not wait for its GPU is ahead of it, and the last step takes the arrear.
    """
    typical = fmean if steps is not None and steps.two_modes else median
    blocks = [x.timing.step_s for one in rounds for x in one.slots if x.arm == BASELINE]
    times = [fmean(block) for block in blocks if block]
    if steps is None or not times:
        return None
    observed_s = steps.mean_s if steps.two_modes else steps.median_s
    return typical(times) / observed_s if observed_s > 0 else None


def _verdict(speedup: Interval | None, share: float | None) -> str:
    if speedup is None:
        return "abandoned"
    if speedup.high < _SLOWER:
        return "slower"
    if speedup.high < _NOTHING:
        return "hidden" if (share or 0.0) >= _HIGH else "nothing"
    return "gain" if speedup.low > 1.0 else "unclear"
