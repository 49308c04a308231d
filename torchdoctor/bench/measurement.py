"""How one program is measured: which launches there are, and how long each of them takes."""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchdoctor.bench.block_plan import (
    SwitchBlocks,
    TurnBlocks,
    choose_switch_blocks,
    choose_turns,
    takes_one_process,
    too_large,
    why_in_turns,
)
from torchdoctor.bench.record import ENDS_BEFORE_S, Recorder
from torchdoctor.bench.turns import abba, take_turns
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window
from torchdoctor.schema import Boundary, Evidence, LaunchTiming, LoaderFacts, SwitchedLaunch, fact

# A fix may need more than the untouched program: larger batches, samples kept.
_MEMORY_TO_SPARE = 2.0
_GPU_MEMORY_TO_SPARE = 1.25
_FEWEST_BLOCKS = 4  # of each side, or two of whole cycles
_DEARER = 2.5  # times two launches that follow each other, which see half as much
_LATE_S = 10.0  # for a launch that is about to end when its share of the budget is up
_PRICED = 2.1  # halves: slightly more than a pair takes, as the search reckons too
_MANY_PAIRS = 16  # if the time is for fewer pairs, each is made shorter


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What the observed launch, of two versions the slower one, says about every further one."""

    start_s: float  # until the first step
    step_s: float
    boundary: Boundary
    trainers: int = 1
    steps_in_all: int | None = None  # where the program ends by itself
    logs_phases: bool = False
    grows: bool = False  # with its number: steps of the same numbers are compared

    @classmethod
    def of(cls, *observations: Observation) -> "Pace":
        """Return the slower pace of these observations."""
        slower = max(
            (observation.steps for observation in observations), key=lambda steps: steps.mean_s
        )
        return cls(
            start_s=max(observation.start_s for observation in observations),
            step_s=slower.mean_s,
            boundary=slower.boundary,
            trainers=slower.trainers,
            steps_in_all=slower.total_steps_seen if slower.program_ended else None,
            logs_phases=any(observation.logs_phases for observation in observations),
            grows=any(observation.steps.growth is not None for observation in observations),
        )

    def launch_s(self, window: Window) -> float:
        """Return seconds from the start of a launch to the end of its window."""
        return self.start_s + (window.warmup_steps + window.measure_steps) * self.step_s


@dataclass(frozen=True, kw_only=True)
class ProgramLaunches:
    """Starts launches of a program; a failure of the program is a value, not an exception."""

    recorder: Recorder
    pace: Pace  # of the untouched program
    window: Window  # of a launch by itself
    turns: TurnBlocks | None = None  # of launches side by side; None: they follow each other
    blocks: SwitchBlocks | None = None  # of a launch that switches; None: none can
    cold: bool = False  # files that training reads are dropped from the page cache before

    @classmethod
    def of_trials(
        cls,
        recorder: Recorder,
        observed: Observation,
        window: Window,
        turns: TurnBlocks | None = None,
        *,
        loaders: Sequence[LoaderFacts] = (),
        cold: bool = False,
    ) -> "ProgramLaunches":
        """Return the launches of a run's trials; `loaders`: the main process's."""
        return cls(
            recorder=recorder,
            pace=Pace.of(observed),
            window=window,
            turns=turns,
            blocks=choose_switch_blocks(observed.steps, window, observed.start_s, loaders),
            cold=cold,
        )

    @property
    def side_by_side(self) -> bool:
        """Return False where launches follow each other."""
        return self.turns is not None

    @property
    def expected_s(self) -> float:
        """Return seconds of a launch of the untouched program, or of its half of a pair."""
        if self.turns is None:
            return self.pace.launch_s(self.window)
        # Where time is short, a pair is begun that may fit: what the budget cuts off costs nothing.
        return self.shortened_s(self.turns.pair_s / 2, self.shortest_pair_s)

    @property
    def image_s(self) -> float:
        """Return seconds that the first launch of an arm with files of its own takes longer."""
        if self.turns is None:
            return 0.0
        measured_s = self.recorder.image_s
        return self.pace.start_s if measured_s is None else measured_s

    @property
    def shortest_pair_s(self) -> float:
        """Return what a pair takes at least: four turns; the observed warm-up was a cold one."""
        if self.turns is None:
            return 2 * self.expected_s
        return self.pace.start_s + 4 * self.turns.turn_s

    def shortened_s(self, half_s: float, least_s: float | None = None) -> float:
        """Return what half of a pair takes in the time that is left, which may cut its turns.

        `half_s`: with all of its turns, which it takes too where not even four of them fit;
        `least_s`: of a pair of four turns, else told by `half_s`.
        """
        left_s = self.recorder.left_s - ENDS_BEFORE_S
        if self.turns is None or 2 * half_s <= left_s:
            return half_s
        if least_s is None:
            least_s = 2 * half_s - 2 * (self.turns.blocks - 2) * self.turns.turn_s
        return min(half_s, left_s / _PRICED) if least_s * _PRICED / 2 <= left_s else half_s

    def alone(self, arm: LaunchSpec, most_s: float) -> LaunchTiming:
        """Launch an arm by itself."""
        window = self._window_of(arm)
        plan = {
            "phases": self.pace.logs_phases,
            "warmup_steps": window.warmup_steps,
            "measure_steps": window.measure_steps,
            "max_window_s": window.max_window_s,
            # Freezing one of several independent trainers would give the others its cores.
            "after": "continue" if self.pace.trainers > 1 else "freeze",
            "fingerprint_batches": min(window.warmup_steps, 10),
        }
        timeout_s = _timeout_s(self.pace.launch_s(window), most_s)
        return self.recorder.time(self._with(arm, plan), timeout_s, cold=self.cold)

    def together(
        self, arms: tuple[LaunchSpec, LaunchSpec], chance: random.Random, most_s: float
    ) -> tuple[LaunchTiming, LaunchTiming]:
        """Launch two arms at once; they take turns, and begin none after `most_s`."""
        assert self.turns is not None
        turns = self._turns_of(self.turns, arms)
        timeout_s = _timeout_s(turns.pair_s + self.pace.start_s, most_s)
        phases = {"phases": self.pace.logs_phases}
        warmups = [self.warmup_steps(arm, beside=True) for arm in arms]
        warmups = [max(warmups)] * len(arms) if self.pace.grows else warmups
        plans = [replace(turns, warmup_steps=steps).plan | phases for steps in warmups]

        # Only the plan is read after the fork; files of its own give an arm an image of its own.
        differ = any(arm.variables or arm.workload for arm in arms)
        forked = not differ and None not in [self.recorder.image(arm) for arm in arms]
        both = zip(arms, plans, strict=True)
        specs = [replace(self._with(arm, plan), forked=forked) for arm, plan in both]
        starts = [partial(self.recorder.time, spec, timeout_s) for spec in specs]
        end_by_s = self.recorder.end_by_s - ENDS_BEFORE_S
        until_s = time.monotonic() + max(most_s - turns.turn_s, 0.0)
        until_s = min(until_s, end_by_s - 4 * turns.turn_s)  # what begins is to end
        most_turn_s = turns.pair_s / (2 * turns.blocks)  # starting is charged to the turns
        # The first to warm up waits longer for its first block, so that goes by lot too.
        places = chance.sample([0, 1], 2)
        shuffled = starts[places[0]], starts[places[1]]
        order = abba(turns.blocks, chance)
        timings = take_turns(shuffled, order, most_turn_s, until_s, end_by_s)
        return timings[places[0]], timings[places[1]]  # swapping twice is nothing

    def switch(
        self, arms: Sequence[LaunchSpec], rounds: int, most_s: float, seed: int
    ) -> SwitchedLaunch:
        """Launch the program once; the arms take turns with the untouched program."""
        assert self.blocks is not None
        # Arms that are slower than the untouched program take longer; rounds end in time.
        limit_s = max(min(1.5 * self.blocks.launch_s(arms, rounds) + 5.0, most_s), 1.0)
        plan = self.blocks.plan(arms, rounds, limit_s, seed)
        spec = self._with(LaunchSpec(name="switch", forked=True), plan)
        return self.recorder.switch(spec, [len(arm.fixes) for arm in arms], limit_s)

    def warmup_steps(self, arm: LaunchSpec, beside: bool) -> int:
        """Return the warm-up of an arm by itself, or beside the untouched program."""
        if beside and self.turns is not None:
            return self._turns_of(self.turns, [arm]).warmup_steps
        return self._window_of(arm).warmup_steps

    def _window_of(self, arm: LaunchSpec) -> Window:
        settled = self._settled_after(arm, self.window.measure_steps)
        return self.window.warmed_up(settled, self.pace.step_s, self.pace.start_s)

    def _turns_of(self, turns: TurnBlocks, arms: Sequence[LaunchSpec]) -> TurnBlocks:
        # What a worker waited for came while it stood still: a batch of each may lie ready.
        ready = max(arm.workers for arm in arms)
        turns = (turns.in_epochs if ready else None) or turns
        turns = turns.warmed_up(max(self._settled_after(arm, turns.measured_steps) for arm in arms))
        discarded = ready if self.pace.steps_in_all is None else 0
        return replace(turns, discard_steps=max(discarded, turns.discard_steps))

    def _with(self, arm: LaunchSpec, plan: Mapping[str, object]) -> LaunchSpec:
        return replace(arm, plan=plan, boundary=arm.boundary or self.pace.boundary)

    def _settled_after(self, arm: LaunchSpec, measured: int) -> int:
        """Return the warm-up that an arm needs; 0 where the program ends before it could count."""
        in_all = self.pace.steps_in_all
        fits = in_all is None or arm.settled_after + measured < in_all
        return arm.settled_after if fits else 0


def _timeout_s(expected_s: float, most_s: float) -> float:
    """Compilation may take a minute; a fix that makes training 4x slower has lost anyway."""
    return max(min(4 * expected_s + 120.0, most_s), expected_s) + _LATE_S


def turns_of_trials(
    observed: Observation,
    window: Window,
    *,
    sandbox: str = "overlay",
    cold: bool = False,
    steps: int | None = None,
    left_s: float = math.inf,
) -> TurnBlocks | Evidence:
    """Choose blocks of pairs side by side, which cost about as much as two launches do.

    `steps`: measured iterations of each side, by the user's word; `left_s`: for all pairs, which
    have fewer blocks where it is short. A fact says why launches have to follow each other.
    """
    if cold:
        return fact("files-read-anew")
    if sandbox == "none":
        return fact("both-write-same-files")
    if (alone := takes_one_process([observed])) is not None:
        return alone
    if too_large([observed, observed], _MEMORY_TO_SPARE, _GPU_MEMORY_TO_SPARE) is not None:
        return fact("memory-for-both-not-sure")
    most_s = _DEARER * 2 * Pace.of(observed).launch_s(window)
    cycle = observed.steps.cycle_steps or 1
    start_s = observed.start_s
    turns, parts = (
        choose_turns(observed.steps, window, start_s, most_s, steps, parts=cut)
        for cut in (False, True)
    )
    if turns is None or parts is None:
        return why_in_turns(observed.steps)
    # The end of an epoch may cost a single fix time (workers that start again).
    whole = turns.block_steps % cycle == 0
    if not whole and window.measure_steps % cycle == 0:
        return fact("epoch-too-long-for-block")
    enough = parts.blocks >= _FEWEST_BLOCKS or (whole and cycle > 1)
    if parts.pair_s > most_s or not enough:
        return fact("steps-too-long-for-blocks")
    short = steps is None and left_s < _MANY_PAIRS * parts.pair_s
    if short:  # what a pair saves goes into other pairs
        turns, parts = (
            replace(plan, blocks=min(plan.blocks, _FEWEST_BLOCKS)) for plan in (turns, parts)
        )
    return replace(parts, in_epochs=turns)
