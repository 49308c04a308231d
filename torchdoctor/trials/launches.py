"""Launches within the budget: what ran, what failed, and in which round."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from torchdoctor.pairs.failures import failure, refusal
from torchdoctor.pairs.pair_times import usable
from torchdoctor.trials.arms import Arm, Fixes, label
from torchdoctor.trials.launch_costs import LaunchCosts
from torchdoctor.trials.rounds import BASELINE, Round, Slot, as_launch
from torchdoctor.trials.schedule import FEWEST_BESIDE, FEWEST_PAIRS, Budget, BudgetEnded
from torchdoctor.words import Block, LaunchTiming, ProgressEvent, SwitchedLaunch
from torchdoctor.words.errors import Interrupted, ProgramFailed, TimedOut, TorchdoctorError
from torchdoctor.words.figures import counted

_MOST_CRASHES = 3  # of a fix, where the other program had not come as far: perhaps it crashes too
_FEWEST_ALONE = 2  # fixes that fail beside another launch and not alone: nothing can run twice
_LONGER = 2.0  # times the usual share: then it is the fix that takes so long

BlockPairs = Sequence[tuple[Block, Block]]


class Launch(Protocol):
    """Starts the program once with these fixes and times it."""

    def __call__(self, fixes: Fixes, *, seed_offset: int = 0) -> LaunchTiming:
        """One launch; a failure of the program is a value, not an exception."""


class Stopped(Exception):  # noqa: N818 - a turn of events, not an error
    """No further launch makes sense; the message says why."""


@dataclass(kw_only=True)
class Plan:
    """How much of a phase is done: at most `most` pairs, rounds or launches of `arms`."""

    phase: str
    unit: str  # "pair" | "round" | "launch"
    most: int
    arms: Sequence[Arm]  # that one pair or round consists of, or that the launches are of
    done: int = 0


class Launcher:
    """Runs arms in rounds, never beyond the budget, and keeps everything that was measured.

    Args:
        launch: starts the program once.
        budget: for all launches together.
        progress: told before and after each launch.
        order: random order within rounds.
        expected_launch_s: of the untouched program, before it was launched here; None: unknown.
        side_by_side: launches both sides of a pair at once; None: one launch follows the other.
    """

    def __init__(
        self,
        launch: Launch,
        budget: Budget,
        *,
        progress: Callable[[ProgressEvent], None] | None = None,
        order: random.Random,
        expected_launch_s: float | None = None,
        side_by_side: SideBySide | None = None,
    ) -> None:
        self.budget, self.order = budget, order
        self.baseline = Arm(key=BASELINE)
        self.seeds: list[LaunchTiming] = []
        self.rounds: list[Round] = []
        self.switched: list[Round] = []  # of blocks within one launch
        self.switched_arms: set[str] = set()  # keys of those that a launch was started with
        self.plan: Plan | None = None
        self.best: str | None = None
        self.done = 0
        self.side_by_side = side_by_side
        self.costs = LaunchCosts(self.baseline, expected_launch_s)
        self._launch, self._progress = launch, progress

    def expected_s(self, arm: Arm) -> float:
        """Seconds that the next launch of this arm takes at most, by those before it."""
        return self.costs.expected_s(arm)

    def affords(self, *arms: Arm) -> bool:
        """Whether one launch of each of these ends within the budget."""
        left = self.budget.left()
        return left > 0 and sum(self.expected_s(arm) for arm in arms) <= left

    def run(self, arm: Arm, phase: str, seed_offset: int = 0) -> Slot:
        """Launch once.

        Raises:
            BudgetEnded: it would not end in time; nothing was launched.
            Stopped: the untouched program cannot be measured (any more).
            Interrupted, KeyboardInterrupt: the user wants to stop.
        """
        if not self.affords(arm):
            raise BudgetEnded
        name = label(arm.fixes) or "the untouched program"
        self.tell(phase, name + (f", seed + {seed_offset}" if seed_offset else ""))
        began = self.budget.now()
        try:
            timing = self._timed(arm, seed_offset)
        finally:
            arm.cost_s += self.budget.now() - began
        if timing.ended == "interrupted":
            raise Interrupted(timing.reason or "Interrupted.")
        self.done += 1
        self.did("launch", phase)
        slot = Slot(
            arm=arm.key, timing=timing, began_s=began, ended_s=self.budget.now(), phase=phase
        )
        if seed_offset == 0:
            self.keep(arm, slot)
        elif usable(timing):
            self.seeds.append(timing)
        self.tell(phase, name)
        return slot

    def switch(
        self, arms: Sequence[Arm], phase: str, start: Callable[[int], SwitchedLaunch]
    ) -> SwitchedLaunch:
        """Launch once with several arms that take turns; `start` is handed a seed.

        Raises:
            Stopped, Interrupted, KeyboardInterrupt: as `run`.
        """
        fixes = sum(arm.candidate is not None for arm in arms)
        parts = [counted(fixes, "fix", "fixes")] if fixes else []
        if len(arms) > fixes:
            parts.append(f"{counted(len(arms) - fixes, 'cost')} taken away")
        name = f"{' and '.join(parts)}, switched on and off within one launch"
        self.switched_arms |= {arm.key for arm in arms}
        self.tell(phase, name)
        began = self.budget.now()
        try:
            found = start(self.order.randrange(1 << 30))
        except (ProgramFailed, TimedOut) as error:
            found = SwitchedLaunch(ended=error.slug, reason=str(error))
        except Interrupted:
            raise
        except TorchdoctorError as error:
            raise Stopped(f"Trials stopped: {error}") from error
        finally:
            for arm in arms:
                arm.cost_s += (self.budget.now() - began) / len(arms)
        if found.ended == "interrupted":
            raise Interrupted(found.reason or "Interrupted.")
        self.done += 1
        self.tell(phase, name)
        return found

    def block(self, arms: Sequence[Arm], phase: str) -> None:
        """Baseline, the arms alive in random order, baseline.

        Raises:
            BudgetEnded: a whole round did not fit; what did is kept.
        """
        alive = [arm for arm in arms if arm.alive]
        cheapest = min(alive, key=self.expected_s, default=None)
        if cheapest is None:
            return
        if not self.affords(self.baseline, cheapest, self.baseline):
            raise BudgetEnded
        one = self.begin(phase, "block")
        one.slots.append(self.run(self.baseline, phase))
        skipped = False
        for arm in self.order.sample(alive, len(alive)):
            # The closing baseline comes first: without it the round says less of everybody.
            if self.affords(arm, self.baseline):
                one.slots.append(self.run(arm, phase))
            else:
                skipped = True
        one.slots.append(self.run(self.baseline, phase))
        self.did("round", phase)
        if skipped:
            raise BudgetEnded

    @property
    def pairs_up(self) -> bool:
        """Whether a pair is two launches side by side, so that nothing is gained by a block."""
        return self.side_by_side is not None and self.side_by_side.works

    @property
    def fewest_pairs(self) -> int:
        """Fewer are not begun where there is no time for more."""
        return FEWEST_BESIDE if self.pairs_up else FEWEST_PAIRS

    def round_of(self, arms: Sequence[Arm]) -> list[Arm]:
        """What `round` launches: who is launched more often, stands there more often."""
        if self.pairs_up:
            return [side for arm in arms for side in (self.baseline, arm)]
        return [self.baseline, *arms, self.baseline]

    def round(self, arms: Sequence[Arm], phase: str) -> None:
        """Each of these once beside the untouched program, in random order.

        Raises:
            BudgetEnded: not all of it fits; what did is kept.
        """
        if not self.pairs_up:
            self.block(arms, phase)
            return
        skipped = False
        for arm in self.order.sample(list(arms), len(arms)):
            if not arm.alive:
                continue
            if self.affords(self.baseline, arm):
                self.abba(arm, phase, 1)
            else:
                skipped = True
        if skipped:
            raise BudgetEnded

    def abba(self, arm: Arm, phase: str, pairs: int, against: Arm | None = None) -> None:
        """Pairs of the baseline (or `against`) and one arm; ends when the arm fails.

        Side by side, or else ABBA or BAAB one after the other.

        Raises:
            BudgetEnded: the next pair does not fit.
        """
        other = against or self.baseline
        beside = self.side_by_side
        while pairs > 0 and beside is not None and beside.suits(other, arm):
            if not (arm.alive and other.alive):
                return
            pairs -= beside.pair(self, other, arm, phase)
        self._abba_in_turns(arm, phase, pairs, other)

    def _abba_in_turns(self, arm: Arm, phase: str, pairs: int, other: Arm) -> None:
        for unit in range(math.ceil(pairs / 2)):
            one = self.begin(phase, "abba", other.key)
            first, second = self.order.sample([other, arm], 2)
            halves = [(first, second), (second, first)][: pairs - 2 * unit]
            for half in halves:
                if not self.affords(*half):
                    raise BudgetEnded
                for side in half:
                    if not (arm.alive and other.alive):
                        return
                    one.slots.append(self.run(side, phase))
                self.did("pair", phase)

    def did(self, unit: str, phase: str) -> None:
        """One more of what is planned was done."""
        if self.plan is not None and (self.plan.unit, self.plan.phase) == (unit, phase):
            self.plan.done += 1

    def begin(self, phase: str, shape: str, against: str = BASELINE) -> Round:
        """A new round in the log."""
        flip = self.order.random() < 0.5
        one = Round(phase=phase, shape=shape, flip=flip, against=against)
        self.rounds.append(one)
        return one

    def _timed(self, arm: Arm, seed_offset: int) -> LaunchTiming:
        try:
            return self._launch(arm.fixes, seed_offset=seed_offset)
        except (ProgramFailed, TimedOut) as error:
            return LaunchTiming(ended=error.slug, reason=str(error))
        except Interrupted:
            raise
        except TorchdoctorError as error:
            raise Stopped(f"Trials stopped: {error}") from error

    def keep(self, arm: Arm, slot: Slot) -> None:
        """Log a launch of an arm, and whether it refused or failed.

        Raises:
            Stopped: the untouched program failed twice in a row.
        """
        arm.slots.append(slot)
        timing = slot.timing
        if arm is self.baseline:
            if [usable(s.timing) for s in arm.slots[-2:]] == [False, False]:
                raise Stopped(
                    "Trials stopped: the untouched program could not be measured twice in a row "
                    f"({timing.reason or timing.ended})."
                )
            return
        if reason := refusal(arm.ids, timing):
            arm.refused = reason
        elif broken := failure(timing, arm.usable_before):
            arm.failed = broken

    def tell(self, phase: str, message: str) -> None:
        """Where the search stands."""
        if self._progress is None:
            return
        plan = self.plan if self.plan is not None and self.plan.phase == phase else None
        if plan is not None and plan.done >= plan.most:
            plan = None  # what follows was not planned
        event = ProgressEvent(
            phase=phase,
            message=message,
            launches_done=self.done,
            number=plan.done + 1 if plan else None,
            most=plan.most if plan else None,
            unit=plan.unit if plan else "launch",
            left_s=self._left_s(plan) if plan else None,
            elapsed_s=self.budget.elapsed(),
            budget_s=self.budget.seconds,
            best=self.best,
        )
        self._progress(event)

    def _left_s(self, plan: Plan) -> float | None:
        """Seconds that the rest of a plan takes at most; None before anything was launched."""
        if not self.baseline.slots:
            return None
        each_s = sum(self.expected_s(arm) for arm in plan.arms)
        if plan.unit == "launch":
            each_s /= len(plan.arms)
        return max(min((plan.most - plan.done) * each_s, self.budget.left()), 0.0)


class BothAtOnce(Protocol):
    """Starts the program twice at once, with these fixes; the two take turns."""

    def __call__(
        self, one: Fixes, other: Fixes, order: random.Random, most_s: float
    ) -> tuple[LaunchTiming, LaunchTiming, BlockPairs]:
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
        if "interrupted" in (one.ended, two.ended):
            raise Interrupted("Interrupted.")
        if not other.fixes:
            self._went = max(self._went, one.went)
            if one.ended == "failed" and not one.stopped and one.blocks:
                self._own_end = min(self._own_end, one.went)
        if self._has_failed(arm, two, one) or self._has_failed(other, one, two):
            return 0
        if not blocks:
            ended = next((x.reason for x in (two, one) if not x.stopped), None)
            self._set_apart(arm, ended or "its first block of steps did not end")
            return 0
        self._worked = True
        launcher.keep(other, mine)
        launcher.keep(arm, its)
        found = launcher.begin(phase, "turns", other.key)
        for first, second in blocks:
            found.slots += [
                replace(mine, timing=as_launch(first)),
                replace(its, timing=as_launch(second)),
            ]
        launcher.did("pair", phase)
        launcher.did("launch", phase)
        launcher.did("launch", phase)
        launcher.tell(phase, names[0])
        return 1

    def _both(
        self, launcher: Launcher, other: Arm, arm: Arm
    ) -> tuple[LaunchTiming, LaunchTiming, BlockPairs]:
        try:
            return self._start(other.fixes, arm.fixes, launcher.order, launcher.budget.left())
        except Interrupted:
            raise
        except TorchdoctorError as error:
            raise Stopped(f"Trials stopped: {error}") from error

    def _has_failed(self, arm: Arm, timing: LaunchTiming, beside: LaunchTiming) -> bool:
        """Whether a fix refused or failed, or the launch is to be repeated.

        What fails before its first block is repeated alone: a fixed port, no memory for both. What
        fails later than the other program came is repeated as it was: that may fail there as well.
        """
        if reason := refusal(arm.ids, timing):
            arm.refused = reason
            return True
        broken = failure(timing, arm.usable_before)
        if not arm.fixes or (broken is None and not timing.late):
            return False
        others_went = max(self._went, beside.went)
        never_began = not timing.blocks and not timing.stopped
        if timing.late and (never_began or (timing.blocks and others_went > timing.went)):
            what = "A block of its steps" if timing.blocks else "Its warm-up"
            self._hung.append(arm)
            # Once, after pairs that ran, it may be the machine: who hangs will do so again.
            if not arm.timings or self._hung.count(arm) > 1:
                arm.failed = f"{what} did not end, so it was given up."
            else:
                arm.remarks.append(f"{what.lower()} did not end once; that pair is not counted")
            return True
        if timing.blocks and timing.ended == "failed":
            if timing.went >= self._own_end:
                return False  # so does the untouched program
            self._crashes.append(arm)
            went_on = not timing.stopped and others_went > timing.went
            if went_on or self._crashes.count(arm) >= _MOST_CRASHES:
                arm.failed = broken
            return True
        could_not = any(one.state == "failed" for one in timing.fixes)
        if not could_not and (timing.stopped or timing.late):
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
