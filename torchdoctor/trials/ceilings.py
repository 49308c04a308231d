"""Ceilings: costs that are taken away in a switching launch, to see what that gives at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchdoctor.records import Interval, SwitchedLaunch, TriedCeiling
from torchdoctor.trials.arms import Arm, Fixes
from torchdoctor.trials.evidence import Evidence

_NOTHING = 1.02  # an interval that ends below is no gain
_HIGH = 0.2  # of the step: a share that would make one look for a gain
_NO_BLOCKS = (
    "Blocks of this program's steps cannot be compared within one launch: several processes train, "
    "a backward alone separates steps, or these come in kinds without a regular cycle."
)
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
) -> list[TriedCeiling]:
    """What became of each.

    Args:
        trials: in the order of `arms`.
        arms: their arms.
        evidence: what the blocks say.
        looked: keys of the arms that a launch was started with; None: there can be none.
    """
    found = []
    for trial, arm in zip(trials, arms, strict=True):
        speedup = evidence.ceiling(arm)
        verdict = _verdict(speedup, trial.share)
        reason = arm.refused or "Too few of its blocks were seen."
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
                reason=None if speedup is not None else reason,
                pairs=len(evidence.paired(arm, "switch")) if speedup is not None else 0,
            )
        )
    return found


def _verdict(speedup: Interval | None, share: float | None) -> str:
    if speedup is None:
        return "abandoned"
    if speedup.high < _NOTHING:
        return "hidden" if (share or 0.0) >= _HIGH else "nothing"
    return "gain" if speedup.low > 1.0 else "unclear"
