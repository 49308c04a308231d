"""The engine: every measurement of `run`, `gate` and the benchmarks is made here.

It knows what launches cost and their failures mean; it holds no budget and judges nothing.
"""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from torchdoctor.bench.failures import Failures, Lost, Outcome, failure, refusal
from torchdoctor.bench.measurement import ProgramLaunches
from torchdoctor.bench.pair_times import usable
from torchdoctor.bench.turns import neighbours
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.schema import LaunchTiming, Pair, SwitchedLaunch, fact

# Of a one-time cost, paid again with a warm cache, until measured (compiling on a CPU: 0.06).
CACHED = 0.15
_MANY = 4  # launches, of which the slowest met somebody else's load
_FEWEST_BLOCKS = 2  # of each side, where the budget's end cut a pair off
_LONGER = 2.0  # times the usual share of a pair: then it is the fix that takes so long


@dataclass(frozen=True, kw_only=True)
class PairTask:
    """A pair that is to be measured, on this machine or on another one."""

    arms: tuple[LaunchSpec, LaunchSpec]  # against, arm
    beside: bool  # both at once; else they follow each other
    swapped: bool = False  # the arm is launched first
    most_s: float = math.inf


@dataclass(frozen=True, kw_only=True)
class PairTimings:
    """How the launches of a pair ended; in turns, none follows a launch that cannot be used."""

    timings: list[LaunchTiming]  # against, arm; in turns: in the order of the task
    seconds: list[float]  # of both together, or of each in turns


def measure(
    starts: ProgramLaunches, task: PairTask, chance: random.Random, clock: Callable[[], float]
) -> PairTimings:
    """Launch both sides of a pair on this machine."""
    began_s = clock()
    if task.beside:
        both = starts.together(task.arms, chance, task.most_s)
        return PairTimings(timings=list(both), seconds=[clock() - began_s])
    timings: list[LaunchTiming] = []
    seconds: list[float] = []
    for arm in task.arms[::-1] if task.swapped else task.arms:
        launched_s = clock()
        timings.append(starts.alone(arm, task.most_s - (launched_s - began_s)))
        seconds.append(clock() - launched_s)
        if failure(timings[-1]) or refusal([fix.id for fix in arm.fixes], timings[-1]):
            break
    return PairTimings(timings=timings, seconds=seconds)


class Engine:
    """Measures pairs of arms, launches of one arm, and launches that switch between several.

    `chance` decides the order within pairs; `patience`: failures of an arm that are forgiven.
    """

    def __init__(
        self,
        starts: ProgramLaunches,
        chance: random.Random,
        *,
        patience: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._starts = starts
        self._chance = chance
        self._clock = clock
        self.failures = Failures(patience=patience)
        self._seconds: dict[str, list[float]] = defaultdict(list)  # of launches, by arm
        self._compiled: dict[tuple[str, ...], LaunchSpec] = {}  # by fixes: the last one measured
        # By arms that were launched in turns, whether the arm comes first the next time.
        self._second_half: dict[tuple[str, str], bool] = {}
        self.launches = 0  # started so far

    def close(self) -> None:
        """End what is measured elsewhere: here nothing is."""

    @property
    def side_by_side(self) -> bool:
        """Return False where launches follow each other."""
        return self._starts.side_by_side and self.failures.works_twice

    def pair(
        self, arm: LaunchSpec, against: LaunchSpec = UNTOUCHED, *, most_s: float = math.inf
    ) -> Pair | Outcome:
        """Measure one pair: side by side where the two can be, else one after the other.

        After `most_s` no further turns begin, and a lost pair is not repeated. Raises
        TorchdoctorError where the program cannot be launched at all, and KeyboardInterrupt.
        """
        until_s = self._clock() + most_s
        while True:
            task = self.task(arm, against, until_s - self._clock())
            outcome = self.taken(task, measure(self._starts, task, self._chance, self._clock))
            left_s = until_s - self._clock()
            if not isinstance(outcome, Lost) or outcome.cut_off or arm.name == against.name:
                return outcome
            if self.expected_s(arm, against) > left_s:
                return outcome

    def runs_beside(self, arm: LaunchSpec, against: LaunchSpec = UNTOUCHED) -> bool:
        """Return True if the next pair of these is two launches side by side."""
        return self._starts.side_by_side and self.failures.may_run_beside(against, arm)

    def launch(self, arm: LaunchSpec, *, most_s: float = math.inf) -> LaunchTiming:
        """Measure one launch by itself."""
        began_s = self._clock()
        timing = self._starts.alone(arm, most_s)
        self.launches += 1
        if timing.ended == "interrupted":
            raise KeyboardInterrupt
        if not arm.seed_offset:
            self._seconds[arm.name].append(self._clock() - began_s)
        return timing

    def can_switch(self, arm: LaunchSpec) -> bool:
        """Return True if an arm can be switched on and off within one launch."""
        return self._starts.blocks is not None and arm.switching is not None

    def switch(
        self, arms: Sequence[LaunchSpec], rounds: int, *, most_s: float = math.inf
    ) -> SwitchedLaunch:
        """Measure blocks of these arms and the untouched program within one launch."""
        switched = self._starts.switch(arms, rounds, most_s, self._chance.randrange(1 << 30))
        self.launches += 1
        if switched.ended == "interrupted":
            raise KeyboardInterrupt
        return switched

    def expected_s(self, arm: LaunchSpec, against: LaunchSpec = UNTOUCHED) -> float:
        """Return seconds that the next pair takes at most."""
        return self.expected_launch_s(against) + self.expected_launch_s(arm)

    def expected_launch_s(self, arm: LaunchSpec) -> float:
        """Return seconds that the next launch of an arm takes at most, or its half of a pair."""
        seconds = self._seconds[arm.name]
        if arm.is_baseline:
            return self._starts.shortened_s(
                _at_most(seconds) if seconds else self._starts.expected_s
            )
        if not seconds:
            return self._starts.shortened_s(self._plain_s()) + self.once_s(arm)
        if not arm.setup_s:
            return self._starts.shortened_s(_at_most(seconds))
        # The first launch compiles; those after it find the result in the cache.
        return max(seconds[1:], default=self._plain_s() + CACHED * self.once_s(arm))

    def _note_compiled(self, arm: LaunchSpec) -> None:
        if arm.setup_s:
            self._compiled[_fixes_of(arm)] = arm

    def expected_switch_s(self, arms: Sequence[LaunchSpec], rounds: int) -> float:
        """Return seconds of a launch that switches; infinite: none has room for these rounds."""
        blocks = self._starts.blocks
        if blocks is None or not blocks.has_room(arms, rounds):
            return math.inf
        return blocks.launch_s(arms, rounds)

    def once_s(self, arm: LaunchSpec) -> float:
        """Return seconds that an arm's first launch takes beyond the others: compiling.

        Another setting of its fix that was measured says how far off what was announced is.
        """
        seconds = self._seconds[arm.name]
        if seconds and arm.setup_s:
            return max(0.0, seconds[0] - self._plain_s())
        other = self._compiled.get(_fixes_of(arm)) if arm.setup_s else None
        if other is None:
            return arm.setup_s
        return max(0.0, self.once_s(other) + arm.setup_s - other.setup_s)

    @property
    def image_s(self) -> float:
        """Return seconds that the first launch of an edited program takes beyond the others."""
        return self._starts.image_s

    def warmup_steps(self, arm: LaunchSpec) -> int:
        """Return the iterations before those that are measured of an arm."""
        return self._starts.warmup_steps(arm, self.runs_beside(arm))

    def _plain_s(self) -> float:
        plain = self._seconds[UNTOUCHED.name]
        return median(plain) if plain else self._starts.expected_s

    def task(self, arm: LaunchSpec, against: LaunchSpec, most_s: float) -> PairTask:
        """Return the next pair of these: in turns AB by lot, and the time after that BA."""
        if self.runs_beside(arm, against):
            return PairTask(arms=(against, arm), beside=True, most_s=most_s)
        swapped = self._second_half.pop((against.name, arm.name), None)
        if swapped is None:
            swapped = self._chance.random() >= 0.5
        return PairTask(arms=(against, arm), beside=False, swapped=swapped, most_s=most_s)

    def taken(self, task: PairTask, measured: PairTimings) -> Pair | Outcome:
        """Return what the launches of a pair are worth; raise KeyboardInterrupt."""
        self.launches += len(measured.timings)
        if any(timing.ended == "interrupted" for timing in measured.timings):
            raise KeyboardInterrupt
        if _cut_off(task, measured.timings):
            return Lost(why=fact("budget-ended"), cut_off=True)
        if task.beside:
            return self._side_by_side(task, measured)
        return self._in_turns(task, measured)

    def _side_by_side(self, task: PairTask, measured: PairTimings) -> Pair | Outcome:
        against, arm = task.arms
        first, second = measured.timings
        seconds = self._shares_s(arm, against, measured.seconds[0])
        outcome = self.failures.after_pair(task.arms, (first, second))
        if outcome is not None:
            return outcome
        self._seconds[against.name].append(seconds[0])
        self._seconds[arm.name].append(seconds[1])
        self._note_compiled(arm)
        return Pair(
            launches=(first.counted, second.counted),
            blocks=neighbours(first, second),
            side_by_side=True,
            seconds=seconds,
        )

    def _shares_s(self, arm: LaunchSpec, against: LaunchSpec, pair_s: float) -> tuple[float, float]:
        """Return seconds of a pair by side: half, but for what a fix alone takes longer."""
        usual_s = median(self._seconds[against.name] or [self.expected_launch_s(UNTOUCHED)])
        half_s = pair_s / 2
        longer = 1.0 if arm.setup_s else _LONGER
        own_s = usual_s if usual_s and half_s > longer * usual_s else half_s
        return own_s, pair_s - own_s

    def _in_turns(self, task: PairTask, measured: PairTimings) -> Pair | Outcome:
        timings = measured.timings
        seconds = measured.seconds
        order = task.arms[::-1] if task.swapped else task.arms
        for spec, timing, took_s in zip(order, timings, seconds, strict=False):
            self._seconds[spec.name].append(took_s)
            outcome = self.failures.after_launch(spec, timing)
            if outcome is not None:
                return outcome
        self._note_compiled(task.arms[1])
        self._second_half[task.arms[0].name, task.arms[1].name] = not task.swapped
        if task.swapped:
            timings, seconds = timings[::-1], seconds[::-1]
        return Pair(
            launches=(timings[0], timings[1]),
            blocks=[(timings[0].whole, timings[1].whole)],
            side_by_side=False,
            seconds=(seconds[0], seconds[1]),
        )


def _cut_off(task: PairTask, timings: Sequence[LaunchTiming]) -> bool:
    """Return True if the budget ended before the pair could show anything."""
    if not any(timing.cut_off for timing in timings):
        return False
    if task.beside:
        return min(len(timing.blocks) for timing in timings) < _FEWEST_BLOCKS
    return not all(map(usable, timings)) or len(timings) < len(task.arms)


def _fixes_of(arm: LaunchSpec) -> tuple[str, ...]:
    return tuple(fix.id for fix in arm.fixes)


def _at_most(seconds: Sequence[float]) -> float:
    """Return what one more launch takes at most; of many, the slowest met somebody else's load."""
    longest = sorted(seconds)
    return longest[-2] if len(longest) >= _MANY else longest[-1]
