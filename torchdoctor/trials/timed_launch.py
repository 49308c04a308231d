"""The launch that trials call: fixes in, one sample of the program's speed out."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchdoctor.advice.source_patch import SourcePatch, source_patch
from torchdoctor.facts.lookup import training_loaders
from torchdoctor.facts.other_load import load_of, load_words
from torchdoctor.launch.launch import Variables
from torchdoctor.launch.launch_plan import Fix
from torchdoctor.launch.running_launch import Poll
from torchdoctor.launch.sandbox import Contents
from torchdoctor.machine.load_beside import LoadBeside
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window, prepared_ahead
from torchdoctor.pairs.record import Recorder
from torchdoctor.pairs.turn_blocks import TurnBlocks, choose_turns, too_large, why_in_turns
from torchdoctor.pairs.turns import Start, neighbours, take_turns_by_lot
from torchdoctor.trials.compare import usable
from torchdoctor.trials.launches import BlockPairs, BothAtOnce
from torchdoctor.trials.patch_trial import PATCH
from torchdoctor.words import AppliedFix, LaunchTiming, LoaderFacts, Recording, TurnsTaken
from torchdoctor.words.specs import FixSpec

# A fix may need more than the untouched program: larger batches, samples kept.
_MEMORY_TO_SPARE, _GPU_MEMORY_TO_SPARE = 2.0, 1.25
_TOO_LONG = "steps are so long that blocks of them would cost more than launches"
_FEWEST_BLOCKS = 4  # of each side, or two of whole cycles
_DEARER = 1.5  # times two launches that follow each other
_DRAINED = 2.0  # times the stock, as it is filled while it is used
_MANY_PAIRS = 16  # that the time is for; fewer are made shorter

_Fixes = Sequence[tuple[str, dict[str, Any]]]


def _ready(settings: dict[str, Any], loader: LoaderFacts) -> int:
    """Batches to wait for until a stock of them is gone, while workers go on making more."""
    if not {"num_workers", "prefetch_factor"} & set(settings):
        return 0
    return int(_DRAINED * math.prod(prepared_ahead(settings, loader)))


def expected_launch_s(seen: Observation, window: Window) -> float:
    """Seconds from the start of a launch of the untouched program to the end of its window."""
    return seen.start_s + (window.warmup_steps + window.measure_steps) * seen.steps.mean_s


def turns_of_trials(
    recorder: Recorder,
    seen: Observation,
    window: Window,
    steps: int | None = None,
    wanted: bool = True,
    left_s: float = math.inf,
) -> TurnBlocks | str | None:
    """Blocks of pairs side by side, which cost about as much as two launches do.

    Args:
        recorder: starts the launches.
        seen: the untouched program.
        window: of a launch by itself.
        steps: measured iterations of each side, where the user says so.
        wanted: by the user.
        left_s: for all pairs: where it is short, more pairs of fewer blocks decide more than few
            pairs of many.

    Returns:
        Half a sentence where launches have to follow each other; None where that is wanted.
    """
    if not wanted:
        return None
    if recorder.drops_files:
        return "files are read from the disk anew by each"
    if recorder.sandbox.mode == "none":
        return "without the sandbox both would write to the same files"
    if too_large([seen, seen], _MEMORY_TO_SPARE, _GPU_MEMORY_TO_SPARE) is not None:
        return "memory for both at the same time, and for what a fix may need, is not sure"
    most_s = 2 * expected_launch_s(seen, window)
    cycle = seen.steps.cycle_steps or 1
    for dearer in (1.0, _DEARER):
        turns = choose_turns(seen.steps, window, seen.start_s, dearer * most_s, steps)
        if turns is None:
            return why_in_turns(seen.steps)
        if turns.pair_s > _DEARER * most_s:
            return _TOO_LONG
        # An epoch's end may cost a fix what it costs nobody else (workers that start again).
        whole = turns.block_steps % cycle == 0
        if not whole and window.measure_steps % cycle == 0:
            return "an epoch is too long for a block of steps"
        if turns.blocks >= _FEWEST_BLOCKS or (whole and cycle > 1):
            short = steps is None and left_s < _MANY_PAIRS * turns.pair_s
            return turns.shortened(_FEWEST_BLOCKS) if short else turns
    return _TOO_LONG


@dataclass(frozen=True, kw_only=True)
class _How:
    """One launch: its name, and what is switched on or changed in it; see `Recorder.time`."""

    name: str
    files: Sequence[Fix] = ()
    contents: Contents | None = None
    variables: Variables | None = None
    applied: list[AppliedFix] = field(default_factory=list)  # without the probe's help


class TimedLaunch:
    """What trials call: fixes in, one sample out.

    `kind` begins the names of its launches, where they are not of the trials of speed.
    """

    def __init__(
        self,
        recorder: Recorder,
        seen: Observation,
        window: Window,
        modules: dict[str, FixSpec],
        left: Callable[[], float],
        recording: Recording,
        kind: str = "",
    ) -> None:
        self._recorder = recorder
        self._seen = seen
        self._window = window
        self._modules = modules
        self._left = left
        self._recording = recording
        self._kind = kind
        self.patch: SourcePatch | None = None  # of `make_patch`
        self._doubts: list[str] = []
        self._beside = LoadBeside()
        self._patched: _Fixes = []  # what launches of PATCH have in their source

    @property
    def doubts(self) -> list[str]:
        """What weakens what was measured; to be asked once all launches have ended."""
        cpus = self._recording.environment.cpus
        load = load_words(self._beside.cpus(), cpus)
        if load is None or load_of([self._recording.sensors], cpus) is not None:
            return self._doubts  # said of the observed launch
        return [
            *self._doubts,
            f"Other programs kept {load} busy while fixes were tried: speed-ups, above all of "
            "thread counts and workers, may be those of a busy machine. Measure on a quiet one "
            "before changing anything for good.",
        ]

    def make_patch(self, fixes: _Fixes) -> str | None:
        """Make the patch that launches of PATCH run; a sentence where it cannot be run."""
        self.patch = source_patch(fixes, self._recording, self._modules)
        self._patched = [one for one in fixes if self.patch and one[0] in self.patch.fixes]
        if self.patch is None:
            return "no edit of the source can be made with certainty"
        if self._recording.environment.sandbox != "overlay":
            return "the patched source can be run in the overlay sandbox alone"
        return None

    def __call__(self, fixes: _Fixes, *, seed_offset: int = 0) -> LaunchTiming:
        """Launch once with these fixes, or `[(PATCH, {})]`; a failure is a value."""
        how = self._how(fixes)
        after = self._settled_after(fixes, self._window.measure_steps)
        window = self._window.warmed_up(after, self._seen.steps.mean_s, self._seen.start_s)
        timing = self._recorder.time(
            how.name,
            self._seen.found.boundary,
            window,
            how.files,
            self._timeout_s(expected_launch_s(self._seen, window)),
            seed_offset,
            self._seen.steps.trainers,
            how.contents,
            how.variables,
        )
        if usable(timing):
            self._doubt(fixes, window.warmup_steps, timing)
        return replace(timing, fixes=how.applied) if how.applied else timing

    def expected_s(self, turns: TurnBlocks | str | None) -> float:
        """Seconds of a launch of the untouched program, or of its half of a pair side by side."""
        if isinstance(turns, TurnBlocks):
            return turns.pair_s / 2
        return expected_launch_s(self._seen, self._window)

    def both_at_once(self, turns: TurnBlocks | str | None) -> BothAtOnce | str | None:
        """What trials call for a pair side by side, in blocks of `turns`; or why there is none."""
        if not isinstance(turns, TurnBlocks):
            return turns

        def both(
            one: _Fixes, other: _Fixes, order: random.Random, most_s: float
        ) -> tuple[TurnsTaken, TurnsTaken, BlockPairs]:
            after = self._settled_after([*one, *other], turns.measured_steps)
            warmed = turns.warmed_up(after)
            until_s = time.monotonic() + max(most_s - warmed.turn_s, 0.0)
            starts = self._turning(one, warmed), self._turning(other, warmed)
            mine, its = take_turns_by_lot(starts, warmed, order, until_s)
            blocks = neighbours(mine, its)
            for fixes, taken in ((one, mine), (other, its)):
                if blocks:
                    self._doubt(fixes, warmed.warmup_steps, taken.timing)
            return mine, its, blocks

        return both

    def _settled_after(self, fixes: _Fixes, measured: int) -> int:
        """Iterations after which these fixes work as they go on working.

        What they keep for later epochs is complete, and the batches that new workers have made
        ready meanwhile are used up. 0 where a program that ends has no `measured` ones after it.
        """
        steps = self._seen.steps
        after = max(self._filled_after(fixes), self._drained_after(fixes))
        fits = not steps.program_ended or after + measured < steps.total_steps_seen
        return after if fits else 0

    def _filled_after(self, fixes: _Fixes) -> int:
        """Iterations of an epoch, where one of these keeps what it makes in it for later ones."""
        loaders = training_loaders(self._recording)
        parts = [fix for fix, _ in self._spelled_out(fixes) if fix in self._modules]
        keeps = any(self._modules[fix].fills_in_first_epoch for fix in parts)
        if not keeps or not loaders or not loaders[0].dataset_length or not loaders[0].batch_size:
            return 0
        return self._iterations(math.ceil(loaders[0].dataset_length / loaders[0].batch_size))

    def _drained_after(self, fixes: _Fixes) -> int:
        """Iterations until what new workers made ready while the program started is used up."""
        loaders = training_loaders(self._recording)
        spelled = self._spelled_out(fixes) if loaders else []
        return self._iterations(max((_ready(x, loaders[0]) for _, x in spelled), default=0))

    def _spelled_out(self, fixes: _Fixes) -> _Fixes:
        """With the fixes that a patch makes permanent in its place."""
        return [x for one in fixes for x in (self._patched if one[0] == PATCH else [one])]

    def _iterations(self, batches: int) -> int:
        return math.ceil(batches / max(self._seen.steps.batches_per_step, 1.0))

    def _doubt(self, fixes: _Fixes, warmup_steps: int, timing: LaunchTiming) -> None:
        """What a warm-up that had to be short leaves in the times of these fixes."""
        missing = {fix.fix for fix in timing.fixes if fix.state in ("refused", "failed")}
        found = []
        for one in self._spelled_out(fixes):
            if one[0] in missing:
                continue
            if self._filled_after([one]) > warmup_steps:
                found.append(
                    f"{one[0]} was measured while it still filled, as its first epoch does not fit "
                    "into the warm-up of a trial: later epochs may gain more."
                )
            if self._drained_after([one]) > warmup_steps:
                found.append(
                    f"{one[0]} was measured with batches in stock, which its workers had made "
                    "ready before and which the warm-up of a trial was too short for: a long "
                    "training may gain less."
                )
        self._doubts += [one for one in found if one not in self._doubts]

    def _turning(self, fixes: _Fixes, turns: TurnBlocks) -> Start:
        how, timeout_s = self._how(fixes), self._timeout_s(turns.pair_s)

        def start(poll: Poll) -> TurnsTaken:
            taken = self._recorder.take_turns(
                how.name,
                self._seen.found.boundary,
                turns,
                timeout_s,
                poll,
                how.files,
                how.contents,
                how.variables,
            )
            if not how.applied:
                return taken
            return replace(taken, timing=replace(taken.timing, fixes=how.applied))

        return start

    def _how(self, fixes: _Fixes) -> _How:
        if [fix for fix, _ in fixes] == [PATCH]:
            contents = self.patch.contents() if self.patch else None
            return _How(
                name=PATCH, contents=contents, applied=[AppliedFix(fix=PATCH, state="applied")]
            )
        return _How(
            name=self._kind + ("+".join(fix for fix, _ in fixes) or "baseline"),
            files=[(fix, Path(self._modules[fix].file), values) for fix, values in fixes],
            variables=self._variables(fixes),
        )

    def _timeout_s(self, expected_s: float) -> float:
        """Compilation may take a minute; a fix that makes training 4x slower has lost anyway."""
        return max(min(4 * expected_s + 120.0, self._left() + expected_s), expected_s + 10.0)

    def _variables(self, fixes: _Fixes) -> dict[str, str | None]:
        """Of the environment, by the fixes that work through it."""
        found: dict[str, str | None] = {}
        for fix, values in fixes:
            found |= self._modules[fix].environment(values)
        return found
