"""Pairs of launches that run at once and take turns: both sides meet the same machine.

On a machine that others share, two launches one after the other differ by what happens to it
meanwhile; their blocks, half a second apart, hardly do (docs/decisions/side-by-side.md).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Protocol

from torchdoctor.errors import Interrupted, TorchdoctorError
from torchdoctor.records import LaunchTiming, TurnsTaken
from torchdoctor.trials.arms import Arm, Fixes, label
from torchdoctor.trials.failed_launches import failure, refusal
from torchdoctor.trials.launches import Launcher, Stopped
from torchdoctor.trials.rounds import Slot
from torchdoctor.trials.schedule import BudgetEnded

_MOST_CRASHES = 3  # of a fix, where the other program had not come as far: perhaps it crashes too
_FEWEST_ALONE = 2  # fixes that fail beside another launch and not alone: nothing can run twice
_LONGER = 2.0  # times the usual share: then it is the fix that takes so long

BlockPairs = Sequence[tuple[LaunchTiming, LaunchTiming]]


class BothAtOnce(Protocol):
    """Starts the program twice at once, with these fixes; the two take turns."""

    def __call__(
        self, one: Fixes, other: Fixes, order: random.Random, most_s: float
    ) -> tuple[TurnsTaken, TurnsTaken, BlockPairs]:
        """What each measured, and its blocks in pairs; a failure of the program is a value.

        Args:
            one: fixes of the first.
            other: of the second.
            order: whose turn is when.
            most_s: after so long no further turns begin.
        """


class SideBySide:
    """Which arms can run beside each other, and their pairs.

    Args:
        start: launches two of them.

    Attributes:
        works: the program was not seen to run by itself alone.
    """

    def __init__(self, start: BothAtOnce) -> None:
        self._start = start
        # Gave nothing side by side, so they are launched alone; usable launches until then.
        self._apart: list[tuple[Arm, int]] = []
        self._crashes: list[Arm] = []
        self._hung: list[Arm] = []
        # Iterations that the untouched program did, and after which it failed by itself.
        self._went, self._own_end = 0, math.inf
        self.works = True
        self._worked = False

    @classmethod
    def of(cls, start: BothAtOnce | str | None) -> SideBySide | None:
        """None where launches follow each other: `start` says why, or that this is wanted."""
        return None if start is None or isinstance(start, str) else cls(start)

    @property
    def doubts(self) -> list[str]:
        """For the report."""
        found = []
        if not self.works:
            found.append(
                "The program could not run side by side with itself, so its launches followed "
                "each other, which sees less in the same time."
            )
        if not math.isinf(self._own_end):
            found.append(
                f"The untouched program itself failed after {self._own_end} iterations; what was "
                "measured before counts."
            )
        return found

    def suits(self, one: Arm, other: Arm) -> bool:
        """Whether these two may be launched at once."""
        # Fine by themselves: it is not the fixes that fail, but a fixed port or a lock. Of one
        # alone, or after a pair that ran, it is want of room for that fix beside another.
        alone = sum(arm.alive and len(arm.timings) > before for arm, before in self._apart)
        if alone >= _FEWEST_ALONE and not self._worked:
            self.works = False
        return self.works and not any(arm in (one, other) for arm, _ in self._apart)

    def pair(self, launcher: Launcher, other: Arm, arm: Arm, phase: str) -> int:
        """One pair of an arm against another one: 1, or 0 where they have to be launched apart.

        Raises:
            BudgetEnded: it does not fit.
            Stopped, Interrupted, KeyboardInterrupt: as `Launcher.run`.
        """
        if not launcher.affords(other, arm):
            raise BudgetEnded
        names = [label(x.fixes) or "the untouched program" for x in (arm, other)]
        launcher.tell(phase, f"{names[0]} side by side with {names[1]}")
        began_s = launcher.budget.now()
        one, two, blocks = self._both(launcher, other, arm)
        ended_s = launcher.budget.now()
        split_s = began_s + _its_share_s(launcher, other, arm, ended_s - began_s)
        other.cost_s += split_s - began_s
        arm.cost_s += ended_s - split_s
        launcher.done += 2
        mine = Slot(
            arm=other.key, timing=one.counted, began_s=began_s, ended_s=split_s, phase=phase
        )
        its = Slot(arm=arm.key, timing=two.counted, began_s=split_s, ended_s=ended_s, phase=phase)
        if "interrupted" in (one.timing.ended, two.timing.ended):
            raise Interrupted("Interrupted.")
        if not other.fixes:
            self._went = max(self._went, one.went)
            if one.timing.ended == "failed" and not one.stopped and one.blocks:
                self._own_end = min(self._own_end, one.went)
        if self._has_failed(arm, two, one) or self._has_failed(other, one, two):
            return 0
        if not blocks:
            ended = next((x.timing.reason for x in (two, one) if not x.stopped), None)
            self._set_apart(arm, ended or "its first block of steps did not end")
            return 0
        self._worked = True
        launcher.keep(other, mine)
        launcher.keep(arm, its)
        found = launcher.begin(phase, "turns", other.key)
        for first, second in blocks:
            found.slots += [replace(mine, timing=first), replace(its, timing=second)]
        launcher.did("pair", phase)
        launcher.did("launch", phase)
        launcher.did("launch", phase)
        launcher.tell(phase, names[0])
        return 1

    def _both(
        self, launcher: Launcher, other: Arm, arm: Arm
    ) -> tuple[TurnsTaken, TurnsTaken, BlockPairs]:
        try:
            return self._start(other.fixes, arm.fixes, launcher.order, launcher.budget.left())
        except Interrupted:
            raise
        except TorchdoctorError as error:
            raise Stopped(f"Trials stopped: {error}") from error

    def _has_failed(self, arm: Arm, taken: TurnsTaken, beside: TurnsTaken) -> bool:
        """Whether a fix refused or failed, or the launch is to be repeated.

        What fails before its first block is repeated alone: a fixed port, no memory for both. What
        fails later than the other program came is repeated as it was: that may fail there as well.
        """
        timing = taken.timing
        if reason := refusal(arm, timing):
            arm.refused = reason
            return True
        broken = failure(arm, timing)
        if not arm.fixes or (broken is None and not taken.late):
            return False
        others_went = max(self._went, beside.went)
        never_began = not taken.blocks and not taken.stopped
        if taken.late and (never_began or taken.broke_down(others_went)):
            what = "A block of its steps" if taken.blocks else "Its warm-up"
            self._hung.append(arm)
            # Once, after pairs that ran, it may be the machine: who hangs will do so again.
            if not arm.timings or self._hung.count(arm) > 1:
                arm.failed = f"{what} did not end, so it was given up."
            else:
                arm.remarks.append(f"{what.lower()} did not end once; that pair is not counted")
            return True
        if taken.blocks and timing.ended == "failed":
            if taken.went >= self._own_end:
                return False  # so does the untouched program
            self._crashes.append(arm)
            if taken.broke_down(others_went) or self._crashes.count(arm) >= _MOST_CRASHES:
                arm.failed = broken
            return True
        could_not = any(one.state == "failed" for one in timing.fixes)
        if not could_not and (taken.stopped or taken.late):
            return False  # it was ended because the other one failed
        self._set_apart(arm, timing.reason or "no block of steps was measured")
        return True

    def _set_apart(self, arm: Arm, why: str) -> None:
        """It is launched alone from here on; its row says what became of it beside another one."""
        if not arm.fixes:
            return  # a pair of the untouched program with itself is only lost
        self._apart.append((arm, len(arm.timings)))
        why = why.rstrip(".")
        arm.remarks.append(f"started beside another launch it failed ({why})")


def _its_share_s(launcher: Launcher, other: Arm, arm: Arm, pair_s: float) -> float:
    """Seconds of a pair that count as the other side's: half, but for what a fix takes longer.

    Half of a compilation, charged to the untouched program, would make all that follows look dear.
    """
    usual = [slot.ended_s - slot.began_s for slot in other.slots]
    usual_s = median(usual) if usual else launcher.expected_s(launcher.baseline)
    half_s = pair_s / 2
    longer = 1.0 if arm.facts.setup_s else _LONGER
    return usual_s if usual_s and half_s > longer * usual_s else half_s
