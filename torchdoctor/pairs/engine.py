"""The engine: every measurement of `run`, `gate` and the benchmarks is made here.

It knows what launches cost and their failures mean; it holds no budget and judges nothing.
"""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.pairs.failures import Failures, Lost, Outcome
from torchdoctor.pairs.measurement import ProgramLaunches
from torchdoctor.pairs.turns import neighbours
from torchdoctor.words import LaunchTiming, Pair, SwitchedLaunch

# Of a one-time cost, paid again with a warm cache, until measured (compiling on a CPU: 0.06).
CACHED = 0.15
_MANY = 4  # launches, of which the slowest met somebody else's load
_LONGER = 2.0  # times the usual share of a pair: then it is the fix that takes so long


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
        self._starts, self._chance, self._clock = starts, chance, clock
        self.failures = Failures(patience=patience)
        self._seconds: dict[str, list[float]] = defaultdict(list)  # of launches, by arm
        self._second_half: dict[tuple[str, str], tuple[LaunchSpec, LaunchSpec]] = {}
        self.launches = 0  # started so far

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
            left_s = until_s - self._clock()
            if self.runs_beside(arm, against):
                outcome = self._side_by_side(arm, against, left_s)
            else:
                outcome = self._in_turns(arm, against, left_s)
            left_s = until_s - self._clock()
            if not isinstance(outcome, Lost) or arm.name == against.name:
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
        own = self._seconds[arm.name]
        if arm.is_baseline:
            return _at_most(own) if own else self._starts.expected_s
        if not own:
            return self._plain_s() + arm.setup_s
        if not arm.setup_s:
            return _at_most(own)
        # The first launch compiles; those after it find the result in the cache.
        return max(own[1:], default=self._plain_s() + CACHED * self.once_s(arm))

    def expected_switch_s(self, arms: Sequence[LaunchSpec], rounds: int) -> float:
        """Return seconds of a launch that switches; infinite: none has room for these rounds."""
        blocks = self._starts.blocks
        if blocks is None or not blocks.has_room(arms, rounds):
            return math.inf
        return blocks.launch_s(arms, rounds)

    def once_s(self, arm: LaunchSpec) -> float:
        """Return seconds that an arm's first launch takes beyond the others: compiling."""
        own = self._seconds[arm.name]
        if not arm.setup_s or not own:
            return arm.setup_s
        return max(0.0, own[0] - self._plain_s())

    def warmup_steps(self, arm: LaunchSpec) -> int:
        """Return the iterations before those that are measured of an arm."""
        return self._starts.warmup_steps(arm, self.runs_beside(arm))

    def _plain_s(self) -> float:
        plain = self._seconds[UNTOUCHED.name]
        return median(plain) if plain else self._starts.expected_s

    def _side_by_side(self, arm: LaunchSpec, against: LaunchSpec, most_s: float) -> Pair | Outcome:
        began_s = self._clock()
        timings = self._starts.together((against, arm), self._chance, most_s)
        self.launches += 2
        if any(timing.ended == "interrupted" for timing in timings):
            raise KeyboardInterrupt
        seconds = self._shares_s(arm, against, self._clock() - began_s)
        outcome = self.failures.after_pair((against, arm), timings)
        if outcome is not None:
            return outcome
        self._seconds[against.name].append(seconds[0])
        self._seconds[arm.name].append(seconds[1])
        return Pair(
            launches=(timings[0].counted, timings[1].counted),
            blocks=neighbours(*timings),
            side_by_side=True,
            seconds=seconds,
        )

    def _shares_s(self, arm: LaunchSpec, against: LaunchSpec, pair_s: float) -> tuple[float, float]:
        """Return seconds of a pair by side: half, but for what a fix alone takes longer."""
        usual = self._seconds[against.name]
        usual_s = median(usual) if usual else self.expected_launch_s(UNTOUCHED)
        half_s = pair_s / 2
        longer = 1.0 if arm.setup_s else _LONGER
        own_s = usual_s if usual_s and half_s > longer * usual_s else half_s
        return own_s, pair_s - own_s

    def _in_turns(self, arm: LaunchSpec, against: LaunchSpec, most_s: float) -> Pair | Outcome:
        """Launch one after the other: AB, and at the next pair of the same two BA."""
        key, until_s = (against.name, arm.name), self._clock() + most_s
        order = self._second_half.pop(key, None)
        is_first_half = order is None
        if order is None:
            order = (against, arm) if self._chance.random() < 0.5 else (arm, against)
        timings, seconds = [], []
        for spec in order:
            began_s = self._clock()
            timings.append(self.launch(spec, most_s=until_s - began_s))
            seconds.append(self._clock() - began_s)
            outcome = self.failures.after_launch(spec, timings[-1])
            if outcome is not None:
                return outcome
        if is_first_half:
            self._second_half[key] = (order[1], order[0])
        if order[0].name != against.name:
            timings.reverse()
            seconds.reverse()
        return Pair(
            launches=(timings[0], timings[1]),
            blocks=[(timings[0].whole, timings[1].whole)],
            side_by_side=False,
            seconds=(seconds[0], seconds[1]),
        )


def _at_most(seconds: Sequence[float]) -> float:
    """Return what one more launch takes at most; of many, the slowest met somebody else's load."""
    longest = sorted(seconds)
    return longest[-2] if len(longest) >= _MANY else longest[-1]
