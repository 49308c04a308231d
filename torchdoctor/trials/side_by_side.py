"""Pairs of launches that run at once and take turns: both sides meet the same machine.

On a machine that others share, two launches one after the other differ by what happens to it
meanwhile; their blocks, half a second apart, hardly do (docs/decisions/side-by-side.md).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from torchdoctor.errors import Interrupted, TorchdoctorError
from torchdoctor.records import LaunchTiming, TurnsTaken
from torchdoctor.trials.arms import Arm, Fixes, label
from torchdoctor.trials.compare import usable
from torchdoctor.trials.failed_launches import failure, refusal
from torchdoctor.trials.launches import Launcher, Stopped
from torchdoctor.trials.rounds import Slot
from torchdoctor.trials.schedule import BudgetEnded

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
        self.works = True

    @classmethod
    def of(cls, start: BothAtOnce | str | None) -> SideBySide | None:
        """None where launches follow each other: `start` says why, or that this is wanted."""
        return None if start is None or isinstance(start, str) else cls(start)

    @property
    def doubts(self) -> list[str]:
        """For the report."""
        if self.works:
            return []
        return [
            "The program could not run side by side with itself, so its launches followed each "
            "other, which sees less in the same time."
        ]

    def suits(self, one: Arm, other: Arm) -> bool:
        """Whether these two may be launched at once."""
        # Fine by itself: it is not the fix that fails, but a fixed port or a lock.
        if any(arm.alive and len(arm.timings) > before for arm, before in self._apart):
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
        half_s = (launcher.budget.now() - began_s) / 2  # a launch's share
        arm.cost_s += half_s
        other.cost_s += half_s
        launcher.done += 2
        mine = Slot(
            arm=other.key,
            timing=one.timing,
            began_s=began_s,
            ended_s=began_s + half_s,
            phase=phase,
        )
        its = replace(
            mine,
            arm=arm.key,
            timing=two.timing,
            began_s=began_s + half_s,
            ended_s=began_s + 2 * half_s,
        )
        if "interrupted" in (one.timing.ended, two.timing.ended):
            raise Interrupted("Interrupted.")
        if self._has_failed(other, one.timing) or self._has_failed(arm, two.timing):
            return 0
        if not blocks:
            self._set_apart(arm, one.timing if usable(two.timing) else two.timing)
            return 0
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

    def _has_failed(self, arm: Arm, timing: LaunchTiming) -> bool:
        """Whether a fix refused, or the launch is to be repeated alone, to see whether it fails."""
        if reason := refusal(arm, timing):
            arm.refused = reason
            return True
        # A launch without blocks may have been ended because the other one failed.
        if arm.fixes and failure(arm, timing) and (timing.fixes or not usable(timing)):
            self._set_apart(arm, timing)
            return True
        return False

    def _set_apart(self, arm: Arm, timing: LaunchTiming) -> None:
        """It is launched alone from here on; its row says what became of it beside another one."""
        self._apart.append((arm, len(arm.timings)))
        why = (timing.reason or "no block of steps was measured").rstrip(".")
        arm.remarks.append(f"started beside another launch it failed ({why})")
