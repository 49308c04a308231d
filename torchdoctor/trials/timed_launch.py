"""The launches that trials call: fixes in, samples of the program's speed out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchdoctor.advice.wording import SourcePatch
from torchdoctor.facts.hardware import load_of, load_words
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.machine.sensors import LoadBeside
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window
from torchdoctor.pairs.block_plan import (
    TurnBlocks,
    choose_switch_blocks,
    choose_turns,
    too_large,
    why_in_turns,
)
from torchdoctor.pairs.measurement import Pace, ProgramLaunches
from torchdoctor.pairs.pair_times import usable
from torchdoctor.pairs.record import Recorder
from torchdoctor.pairs.turns import neighbours
from torchdoctor.trials.arm_specs import PATCH, ArmSpecs
from torchdoctor.trials.launches import BlockPairs, BothAtOnce
from torchdoctor.words import AppliedFix, LaunchTiming, LoaderFacts, Recording, SwitchedLaunch

# A fix may need more than the untouched program: larger batches, samples kept.
_MEMORY_TO_SPARE, _GPU_MEMORY_TO_SPARE = 2.0, 1.25
_TOO_LONG = "steps are so long that blocks of them would cost more than launches"
_FEWEST_BLOCKS = 4  # of each side, or two of whole cycles
_DEARER = 1.5  # times two launches that follow each other
_MANY_PAIRS = 16  # if the time is for fewer pairs, each is made shorter

Fixes = Sequence[tuple[str, dict[str, Any]]]


def launches_of(
    recorder: Recorder,
    observed: Observation,
    window: Window,
    turns: TurnBlocks | None = None,
    *,
    loaders: Sequence[LoaderFacts] = (),
    cold: bool = False,
) -> ProgramLaunches:
    """Return the starter of the launches of a run's trials.

    Args:
        recorder: starts them.
        observed: the untouched program.
        window: of a launch by itself.
        turns: blocks of launches side by side; None: they follow each other.
        loaders: the main process's loaders.
        cold: files are read from the disk anew by each.
    """
    return ProgramLaunches(
        recorder=recorder,
        pace=Pace.of(observed),
        window=window,
        turns=turns,
        blocks=choose_switch_blocks(observed.steps, window, observed.start_s, loaders),
        cold=cold,
    )


def turns_of_trials(
    observed: Observation,
    window: Window,
    *,
    sandbox: str = "overlay",
    cold: bool = False,
    steps: int | None = None,
    left_s: float = math.inf,
) -> TurnBlocks | str:
    """Choose blocks of pairs side by side, which cost about as much as two launches do.

    Args:
        observed: the untouched program.
        window: of a launch by itself.
        sandbox: its mode.
        cold: files are read from the disk anew by each launch.
        steps: measured iterations of each side, where the user says so.
        left_s: for all pairs: where it is short, more pairs of fewer blocks decide more than few
            pairs of many.

    Returns:
        Half a sentence where launches have to follow each other.
    """
    if cold:
        return "files are read from the disk anew by each"
    if sandbox == "none":
        return "without the sandbox both would write to the same files"
    if too_large([observed, observed], _MEMORY_TO_SPARE, _GPU_MEMORY_TO_SPARE) is not None:
        return "memory for both at the same time, and for what a fix may need, is not sure"
    most_s = 2 * Pace.of(observed).launch_s(window)
    cycle = observed.steps.cycle_steps or 1
    for dearer in (1.0, _DEARER):
        turns = choose_turns(observed.steps, window, observed.start_s, dearer * most_s, steps)
        if turns is None:
            return why_in_turns(observed.steps)
        if turns.pair_s > _DEARER * most_s:
            return _TOO_LONG
        # The end of an epoch may cost a single fix time (workers that start again).
        whole = turns.block_steps % cycle == 0
        if not whole and window.measure_steps % cycle == 0:
            return "an epoch is too long for a block of steps"
        if turns.blocks >= _FEWEST_BLOCKS or (whole and cycle > 1):
            short = steps is None and left_s < _MANY_PAIRS * turns.pair_s
            return turns.shortened(_FEWEST_BLOCKS) if short else turns
    return _TOO_LONG


class TimedLaunch:
    """Launches the program with fixes, and times it, for the trials.

    Args:
        launches: starts them.
        arms: makes arms of fixes.
        left: seconds of the budget.
        recording: what was observed.
    """

    def __init__(
        self,
        launches: ProgramLaunches,
        arms: ArmSpecs,
        left: Callable[[], float],
        recording: Recording,
    ) -> None:
        self._launches, self._arms, self._left = launches, arms, left
        self._recording = recording
        self.patch: SourcePatch | None = None  # of `make_patch`
        self._doubts: list[str] = []
        self._beside = LoadBeside()
        self._patched: Fixes = []  # made permanent by the patch

    @property
    def doubts(self) -> list[str]:
        """Return the doubts about all measurements; to be called after the last launch."""
        cpus = self._recording.environment.cpus
        load = load_words(self._beside.cpus(), cpus)
        if load is None or load_of([self._recording.sensors], cpus) is not None:
            return self._doubts  # the observed launch had it too, and its doubt says so
        return [
            *self._doubts,
            f"Other programs kept {load} busy while fixes were tried: speed-ups, above all of "
            "thread counts and workers, may be those of a busy machine. Measure on a quiet one "
            "before changing anything for good.",
        ]

    def make_patch(self, fixes: Fixes) -> str | None:
        """Make the patch that launches of PATCH run; return why it cannot be run, or None."""
        self.patch, why = self._arms.patch(fixes)
        self._patched = [fix for fix in fixes if self.patch and fix[0] in self.patch.fixes]
        return why

    def __call__(self, fixes: Fixes, *, seed_offset: int = 0) -> LaunchTiming:
        """Launch once with these fixes, or `[(PATCH, {})]`; a failure is a value."""
        arm = replace(self._arm(fixes), seed_offset=seed_offset)
        timing = self._launches.alone(arm, self._left())
        if usable(timing):
            self._doubt(fixes, self._launches.warmup_steps(arm), timing)
        return self._with_patch(fixes, timing)

    @property
    def both_at_once(self) -> BothAtOnce | None:
        """Return the starter of pairs side by side; None: there is none."""
        return self._both if self._launches.turns is not None else None

    def _both(
        self, against: Fixes, arm: Fixes, order: random.Random, most_s: float
    ) -> tuple[LaunchTiming, LaunchTiming, BlockPairs]:
        arms = self._arm(against), self._arm(arm)
        mine, its = self._launches.together(arms, order, most_s)
        blocks = neighbours(mine, its)
        for fixes, timing in ((against, mine), (arm, its)):
            if blocks:
                self._doubt(fixes, self._launches.warmup_steps(*arms), timing)
        return self._with_patch(against, mine), self._with_patch(arm, its), blocks

    def _arm(self, fixes: Fixes) -> LaunchSpec:
        if [fix for fix, _ in fixes] == [PATCH] and self.patch is not None:
            return self._arms.patched(self.patch, self._patched)
        return self._arms.of(fixes)

    def _with_patch(self, fixes: Fixes, timing: LaunchTiming) -> LaunchTiming:
        if [fix for fix, _ in fixes] != [PATCH]:
            return timing
        return replace(timing, fixes=[AppliedFix(fix=PATCH, state="applied")])

    def _doubt(self, fixes: Fixes, warmup_steps: int, timing: LaunchTiming) -> None:
        """Keep the doubts that a short warm-up casts on the times of these fixes."""
        spelled = [x for fix in fixes for x in (self._patched if fix[0] == PATCH else [fix])]
        for sentence in self._arms.unsettled(spelled, warmup_steps, timing):
            if sentence not in self._doubts:
                self._doubts.append(sentence)


class SwitchedTrials:
    """Launches the program with arms that take turns; a `trials.switching.Switching`."""

    def __init__(
        self, launches: ProgramLaunches, arms: ArmSpecs, left: Callable[[], float]
    ) -> None:
        self._launches, self._arms, self._left = launches, arms, left

    def rounds_within(self, arms: Sequence[Fixes], seconds: float) -> int:
        """Return how many rounds of these arms a launch of so many seconds has room for."""
        specs = [self._arms.of(fixes) for fixes in arms]
        assert self._launches.blocks is not None
        return self._launches.blocks.of(specs).rounds_within(specs, seconds)

    def __call__(self, arms: Sequence[Fixes], *, rounds: int, seed: int) -> SwitchedLaunch:
        """Launch once with these arms in turns; a failure is a value."""
        specs = [self._arms.of(fixes) for fixes in arms]
        return self._launches.switch(specs, rounds, self._left(), seed)
