"""The log of a search: launches and pairs of its arms within the budget, in rounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Protocol

from torchdoctor.launch.launch_spec import BASELINE, FixFile, LaunchSpec
from torchdoctor.pairs.engine import Engine
from torchdoctor.pairs.failures import Failed, Lost, Refused
from torchdoctor.pairs.pair_times import usable
from torchdoctor.trials.arms import Arm, Fixes, label
from torchdoctor.trials.launch_costs import LaunchCosts
from torchdoctor.trials.rounds import Round, Slot, as_launch
from torchdoctor.trials.schedule import Budget, BudgetEnded
from torchdoctor.words import Block, LaunchTiming, Pair, ProgressEvent, SwitchedLaunch
from torchdoctor.words.errors import Interrupted, ProgramFailed, TimedOut, TorchdoctorError
from torchdoctor.words.figures import counted

BlockPairs = Sequence[tuple[Block, Block]]


class Launch(Protocol):
    """Starts the program once with these fixes and times it."""

    def __call__(self, fixes: Fixes, *, seed_offset: int = 0) -> LaunchTiming:
        """Launch once; a failure of the program is a value, not an exception."""


class BothAtOnce(Protocol):
    """Starts the program twice at once, with these fixes; the two take turns."""

    def __call__(
        self, against: Fixes, arm: Fixes, order: random.Random, most_s: float
    ) -> tuple[LaunchTiming, LaunchTiming, BlockPairs]:
        """Return what each measured, and its blocks in pairs; a failure of the program is a value.

        Args:
            against: fixes of the first.
            arm: of the second.
            order: whose turn is when.
            most_s: after so long no further turns begin.
        """


class SideBySide:
    """Starts both launches of a pair at once."""

    def __init__(self, start: BothAtOnce) -> None:
        self.start = start

    @classmethod
    def of(cls, start: BothAtOnce | str | None) -> SideBySide | None:
        """Return None where launches follow each other: `start` says why, or that it is wanted."""
        return None if start is None or isinstance(start, str) else cls(start)


class _Starts:
    """Starts the launches of the engine."""

    blocks = None

    def __init__(self, launch: Launch, both: BothAtOnce | None, expected_s: float) -> None:
        self._launch, self._both, self.expected_s = launch, both, expected_s

    @property
    def side_by_side(self) -> bool:
        return self._both is not None

    def alone(self, arm: LaunchSpec, most_s: float) -> LaunchTiming:
        try:
            return self._launch(_fixes(arm), seed_offset=arm.seed_offset)
        except (ProgramFailed, TimedOut) as error:
            return LaunchTiming(ended=error.slug, reason=str(error))

    def together(
        self, arms: tuple[LaunchSpec, LaunchSpec], chance: random.Random, most_s: float
    ) -> tuple[LaunchTiming, LaunchTiming]:
        assert self._both is not None
        return self._both(_fixes(arms[0]), _fixes(arms[1]), chance, most_s)[:2]

    def switch(
        self, arms: Sequence[LaunchSpec], rounds: int, most_s: float, seed: int
    ) -> SwitchedLaunch:
        raise NotImplementedError


def _fixes(arm: LaunchSpec) -> Fixes:
    return [(fix.id, fix.settings) for fix in arm.fixes]


def _spec(arm: Arm) -> LaunchSpec:
    fixes = tuple(FixFile(fix, Path(), settings) for fix, settings in arm.fixes)
    return LaunchSpec(name=arm.key, fixes=fixes, setup_s=arm.facts.setup_s)


class Stopped(Exception):  # noqa: N818 - a turn of events, not an error
    """No further launch makes sense; the message says why."""


@dataclass(kw_only=True)
class Plan:
    """The progress of a phase: at most `most` launches of `arms`."""

    phase: str
    most: int
    arms: Sequence[Arm]
    done: int = 0


class Launcher:
    """Measures arms through the engine, never beyond the budget, and keeps what was measured.

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
        self.switched: list[Round] = []  # rounds of blocks within a launch
        self.switched_arms: set[str] = set()  # keys of arms that a launch was started with
        self.plan: Plan | None = None
        self.best: str | None = None
        self.done = self.switches = 0
        starts = _Starts(
            launch, side_by_side.start if side_by_side else None, expected_launch_s or 0.0
        )
        self.engine = Engine(starts, order, clock=budget.now)
        self.side_by_side = self.engine if side_by_side is not None else None
        self.costs = LaunchCosts(self.baseline, expected_launch_s)
        self._progress = progress

    def expected_s(self, arm: Arm) -> float:
        """Return seconds that the next launch of this arm takes at most, by those before it."""
        return self.costs.expected_s(arm)

    def affords(self, *arms: Arm) -> bool:
        """Return True if one launch of each of these ends within the budget."""
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
            timing = self.engine.launch(replace(_spec(arm), seed_offset=seed_offset))
        except Interrupted:
            raise
        except TorchdoctorError as error:
            raise Stopped(f"Trials stopped: {error}") from error
        finally:
            arm.cost_s += self.budget.now() - began
        self.done = self.engine.launches + self.switches
        if self.plan is not None and self.plan.phase == phase:
            self.plan.done += 1
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
            switched = start(self.order.randrange(1 << 30))
        except (ProgramFailed, TimedOut) as error:
            switched = SwitchedLaunch(ended=error.slug, reason=str(error))
        except Interrupted:
            raise
        except TorchdoctorError as error:
            raise Stopped(f"Trials stopped: {error}") from error
        finally:
            for arm in arms:
                arm.cost_s += (self.budget.now() - began) / len(arms)
        if switched.ended == "interrupted":
            raise Interrupted(switched.reason or "Interrupted.")
        self.switches += 1
        self.done += 1
        self.tell(phase, name)
        return switched

    @property
    def pairs_up(self) -> bool:
        """Return True if a pair is two launches side by side."""
        return self.engine.side_by_side

    def abba(self, arm: Arm, phase: str, pairs: int, against: Arm | None = None) -> None:
        """Measure pairs of the baseline (or `against`) and one arm; it ends when the arm fails.

        Raises:
            BudgetEnded: the next pair does not fit.
            Stopped: the untouched program cannot be measured (any more).
        """
        other = against or self.baseline
        names = [label(x.fixes) or "the untouched program" for x in (arm, other)]
        for _ in range(pairs):
            if not (arm.alive and other.alive):
                return
            if not self.affords(other, arm):
                raise BudgetEnded
            beside = " side by side with " if self.engine.side_by_side else " and "
            self.tell(phase, beside.join(names))
            began_s = self.budget.now()
            outcome = self._pair(arm, other)
            if isinstance(outcome, Pair):
                self._log(outcome, (other, arm), phase, self.budget.now())
                self.tell(phase, names[0])
                continue
            arm.cost_s += self.budget.now() - began_s
            if isinstance(outcome, Lost):
                raise BudgetEnded
            self._is_out(outcome, arm if outcome.name == arm.key else other)

    def _pair(self, arm: Arm, other: Arm) -> Pair | Failed | Refused | Lost:
        try:
            outcome = self.engine.pair(_spec(arm), _spec(other), most_s=self.budget.left())
        except Interrupted:
            raise
        except TorchdoctorError as error:
            raise Stopped(f"Trials stopped: {error}") from error
        finally:
            self.done = self.engine.launches + self.switches
            remarks = self.engine.remarks(arm.key)
            arm.remarks += [remark for remark in remarks if remark not in arm.remarks]
        return outcome

    def _is_out(self, outcome: Failed | Refused, arm: Arm) -> None:
        if arm is self.baseline:
            raise Stopped(
                "Trials stopped: the untouched program could not be measured twice in a row "
                f"({outcome.reason})."
            )
        if isinstance(outcome, Refused):
            arm.refused = outcome.reason
        else:
            arm.failed = outcome.reason

    def _log(self, pair: Pair, arms: tuple[Arm, Arm], phase: str, ended_s: float) -> None:
        """Keep a pair as slots of a round."""
        began_s, split_s = ended_s - sum(pair.seconds), ended_s - pair.seconds[1]
        times = ((began_s, split_s), (split_s, ended_s))
        slots = [
            Slot(arm=arm.key, timing=timing, began_s=begin, ended_s=end, phase=phase)
            for arm, timing, (begin, end) in zip(arms, pair.launches, times, strict=True)
        ]
        for arm, slot, seconds in zip(arms, slots, pair.seconds, strict=True):
            arm.slots.append(slot)
            arm.cost_s += seconds
        shape = "turns" if pair.side_by_side else "abba"
        last = self.rounds[-1] if self.rounds else None
        keys = {arm.key for arm in arms}
        # The second half of ABBA belongs to its first: their baselines are compared.
        alike = last is not None and (last.shape, last.phase, len(last.slots)) == (shape, phase, 2)
        if pair.side_by_side or last is None or not alike or not all(map(last.has, keys)):
            last = self.begin(phase, shape, arms[0].key)
        for blocks in pair.blocks:
            last.slots.extend(
                replace(slot, timing=as_launch(block))
                for slot, block in zip(slots, blocks, strict=True)
            )

    def begin(self, phase: str, shape: str, against: str = BASELINE) -> Round:
        """Begin a new round in the log."""
        flip = self.order.random() < 0.5
        each = Round(phase=phase, shape=shape, flip=flip, against=against)
        self.rounds.append(each)
        return each

    def keep(self, arm: Arm, slot: Slot) -> None:
        """Log a launch of an arm, and whether it refused or failed.

        Raises:
            Stopped: the untouched program failed twice in a row.
        """
        arm.slots.append(slot)
        outcome = self.engine.failures.after_launch(_spec(arm), slot.timing)
        if isinstance(outcome, Failed | Refused):
            self._is_out(outcome, arm)

    def tell(self, phase: str, message: str) -> None:
        """Tell how far the search has come."""
        if self._progress is None:
            return
        plan = self.plan if self.plan is not None and self.plan.phase == phase else None
        if plan is not None and plan.done >= plan.most:
            plan = None  # further launches were not planned
        event = ProgressEvent(
            phase=phase,
            message=message,
            launches_done=self.done,
            number=plan.done + 1 if plan else None,
            most=plan.most if plan else None,
            left_s=self._left_s(plan) if plan else None,
            elapsed_s=self.budget.elapsed(),
            budget_s=self.budget.seconds,
            best=self.best,
        )
        self._progress(event)

    def _left_s(self, plan: Plan) -> float | None:
        """Return seconds of the rest of a plan; None before anything was launched."""
        if not self.baseline.slots:
            return None
        each_s = fmean(self.expected_s(arm) for arm in plan.arms)
        return max(min((plan.most - plan.done) * each_s, self.budget.left()), 0.0)
