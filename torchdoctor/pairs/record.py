"""Launches of one workload: observe it, profile it, time it.

A `Recorder` owns the run folder's `launches/` and turns each launch into records. It decides
nothing about fixes; a trial hands it the fixes to switch on.
"""

from __future__ import annotations

import itertools
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.launch.launch import LaunchResult, Poll, Variables, launch
from torchdoctor.launch.launch_ending import with_ending
from torchdoctor.launch.launch_plan import Fix, launch_plan, plan_entries
from torchdoctor.launch.run_folder import writing
from torchdoctor.launch.sandbox import Contents, Sandbox
from torchdoctor.machine.read_speed import drop
from torchdoctor.machine.sensors import Sensors
from torchdoctor.machine.storage import storage_facts, waits_for_input
from torchdoctor.observe.evaluation import evaluates_training_loader
from torchdoctor.observe.events import read_channel
from torchdoctor.observe.observation import (
    Observation,
    ObservationWatch,
    Profiled,
    check_usable,
    own_failure,
    profiled_window,
    step_start_s,
    trainers_first,
)
from torchdoctor.observe.step_finding import NoSteps, StepsFound, find_boundary
from torchdoctor.observe.steps import step_statistics, window_ns
from torchdoctor.observe.window import Window
from torchdoctor.pairs.launch_timing import launch_timing
from torchdoctor.pairs.switch_blocks import Blocks
from torchdoctor.pairs.switch_timing import switched_launch
from torchdoctor.pairs.turn_blocks import TurnBlocks
from torchdoctor.pairs.turn_timing import turns_taken
from torchdoctor.words import (
    Boundary,
    LaunchTiming,
    StorageFacts,
    SwitchedLaunch,
    TurnsTaken,
    Workload,
)
from torchdoctor.words.errors import NoStepFound

_PROFILED_STEPS = 4


class Recorder:
    """Starts the workload again and again, each launch in a folder of its own.

    Args:
        workload: the command.
        folder: the run folder; launches go to `launches/<nn>-<name>/` below it.
        sandbox: keeps what the program writes away from the user's files.
        seed: given to a program that sets none.
        stdin_file: replayed to each launch; None: no input.
        timeout_s: longest wait for the first training steps.
        contents: of files, that every launch sees instead of the real ones (another version).
    """

    def __init__(
        self,
        workload: Workload,
        folder: Path,
        sandbox: Sandbox,
        seed: int,
        stdin_file: Path | None,
        timeout_s: float,
        contents: Contents | None = None,
    ) -> None:
        self.workload = workload
        self.contents = dict(contents or {})
        self.folder = folder
        self.sandbox = sandbox
        self.seed = seed
        self.stdin_file = stdin_file
        self.timeout_s = timeout_s
        self.escaped: list[str] = []
        self.doubts: list[str] = []
        # Of timed launches, where samples of training and evaluation are not told apart without.
        self.logs_phases = False
        self.variables: dict[str, str] = {}  # of every launch's environment
        self.drops_files = False  # that training reads, from the page cache before each launch
        self._launches = itertools.count(1)  # two may begin at the same moment
        self._observed: Path | None = None
        with writing(folder):
            self._compile_cache = folder / "compile-cache"
            self._compile_cache.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Remove what only further launches would have needed."""
        shutil.rmtree(self._compile_cache, ignore_errors=True)

    def observe(
        self, step_on: str | None, enough_s: float, most_s: float, budget_s: float = math.inf
    ) -> Observation:
        """Run the untouched program until its training steps are known well enough.

        Args:
            step_on: what separates iterations, where the user says so.
            enough_s: time of training that is worth watching.
            most_s: time after the first steps at which it ends in any case.
            budget_s: what is left for everything: no longer is waited for the first steps.

        Raises:
            ProgramFailed, NoStepFound, TimedOut: with a sentence that says what to do.
        """
        folder = self._new_folder("observe")
        told = step_on == "loader"  # by the user: batches are steps
        plan = self._plan(
            folder, "observe", sample_stacks=True, watch_files=True, batches_learn=told
        )
        wait_s = min(self.timeout_s, budget_s)
        watch = ObservationWatch(step_on, enough_s, most_s, wait_s)
        sensors = Sensors()
        result = self._launch(plan, folder, wait_s + most_s, watch, sensors)
        if watch.gave_up:
            result = replace(result, ended="timed-out")
        columns = sensors.stop()
        self._observed = folder / "channel"
        events, facts, doubts = read_channel(self._observed)
        found = find_boundary(events, facts, step_on)
        interrupted = result.ended == "interrupted"
        if interrupted and isinstance(found, NoSteps):
            raise KeyboardInterrupt
        check_usable(result, events, found, self.workload)
        assert isinstance(found, StepsFound)
        trainers = [events[pid] for pid in found.trainers]
        self.logs_phases = any(evaluates_training_loader(log) for log in trainers)
        try:
            steps = step_statistics(trainers, found, program_ended=result.ended == "exited")
        except ValueError:
            if interrupted:
                raise KeyboardInterrupt from None
            raise NoStepFound(
                "Only one training step was seen before the program ended; give it more data "
                "or steps, or say with --step-on what a step is."
            ) from None
        begin, end = window_ns(trainers[0], found, steps)
        return Observation(
            found=found,
            steps=steps,
            processes=trainers_first(facts, found.trainers),
            sensors=columns.statistics(begin, end, main_pid=found.trainers[0]),
            wall_s=result.wall_s,
            start_s=step_start_s(trainers[0], found, result),
            doubts=doubts,
            failure=own_failure(result, steps.total_steps_seen),
            interrupted=interrupted,
        )

    def storage(self, seen: Observation) -> StorageFacts | None:
        """Where the files lie that the observed loop waited for; None: it waits for none.

        Reads some of them again: up to some seconds.
        """
        if self._observed is None or not waits_for_input(seen.steps):
            return None
        return storage_facts(self._observed, self.folder)

    def profile(self, boundary: Boundary, warmup_steps: int, timeout_s: float) -> Profiled:
        """A profiler window in a launch that is never timed; then hooks on copies, moves, waits.

        Raises:
            ProgramFailed: where no trace came of it.
        """
        folder = self._new_folder("profile")
        window = {"wait": 1, "warmup": 1, "active": _PROFILED_STEPS}
        plan = self._plan(
            folder,
            "profile",
            boundary=boundary,
            warmup_steps=warmup_steps,
            measure_steps=10**9,
            profile={**window, "with_stack": False, "record_shapes": True, "analyse": True},
        )
        result = self._launch(plan, folder, timeout_s)
        if result.ended == "interrupted":
            raise KeyboardInterrupt
        return profiled_window(result)

    def time(
        self,
        name: str,
        boundary: Boundary,
        window: Window,
        fixes: Sequence[Fix],
        timeout_s: float,
        seed_offset: int = 0,
        trainers: int = 1,
        contents: Contents | None = None,
        variables: Variables | None = None,
    ) -> LaunchTiming:
        """One timed launch with these fixes: one sample of a trial. A failure is a value.

        `contents`: of the program's own files in place of theirs (a patch under trial).
        `variables`: of the environment, that fixes set or (None) take away.
        """
        folder = self._new_folder(name)
        plan = self._plan(
            folder,
            "time",
            boundary=boundary,
            phases=self.logs_phases,
            warmup_steps=window.warmup_steps,
            measure_steps=window.measure_steps,
            max_window_s=window.max_window_s,
            # Freezing one of several independent trainers would give the others its cores.
            after="continue" if trainers > 1 else "freeze",
            fixes=plan_entries(fixes),
            seed_offset=seed_offset,
            fingerprint_batches=min(window.warmup_steps, 10),
        )
        sensors = Sensors(interval_s=0.5)
        result = self._launch(plan, folder, timeout_s, None, sensors, contents, variables)
        timing = launch_timing(folder / "channel", boundary)
        return with_ending(timing, result, sensors.stop().peak_memory_bytes())

    def switch(
        self,
        boundary: Boundary,
        warmup_steps: int,
        blocks: Blocks,
        arms: Sequence[Sequence[Fix]],
        *,
        rounds: int,
        most_s: float,
        seed: int,
        settle_s: Sequence[float] = (),
    ) -> SwitchedLaunch:
        """One launch in which these arms and the untouched program take turns.

        Args:
            boundary: what separates iterations.
            warmup_steps: iterations before the first block.
            blocks: how long they are.
            arms: fixes that are switched together.
            rounds: each arm once, the untouched program twice.
            most_s: wall time of the whole launch.
            seed: of the order within rounds.
            settle_s: by arm, how long at least is discarded after it was switched on, and off.
        """
        folder = self._new_folder("switch")
        plan = self._plan(
            folder,
            "time",
            boundary=boundary,
            warmup_steps=warmup_steps,
            switch={
                "arms": [plan_entries(arm) for arm in arms],
                "rounds": rounds,
                **blocks.plan,
                "most_s": max(most_s - blocks.setup_s - blocks.round_s(len(arms)), 0.0),
                "seed": seed,
                "settle_s": list(settle_s),
            },
        )
        result = self._launch(plan, folder, most_s)
        return switched_launch(folder / "channel", boundary, result, [len(arm) for arm in arms])

    def take_turns(
        self,
        name: str,
        boundary: Boundary,
        turns: TurnBlocks,
        timeout_s: float,
        poll: Poll,
        fixes: Sequence[Fix] = (),
        contents: Contents | None = None,
        variables: Variables | None = None,
    ) -> TurnsTaken:
        """One launch that stands still between its blocks: one of two in `turns.take_turns`.

        `fixes`, `contents`, `variables`: as in `time`. Called in a thread for each of the two.
        """
        folder = self._new_folder(name)
        plan = self._plan(
            folder,
            "time",
            boundary=boundary,
            turns=turns.plan,
            phases=self.logs_phases,
            fixes=plan_entries(fixes),
            fingerprint_batches=min(turns.warmup_steps, 10),
        )
        sensors = Sensors(interval_s=0.5)
        result = self._launch(plan, folder, timeout_s, poll, sensors, contents, variables)
        return turns_taken(result, boundary, turns.warmup_steps, sensors.stop().peak_memory_bytes())

    def _new_folder(self, name: str) -> Path:
        named = f"{next(self._launches):03d}-{re.sub(r'[^A-Za-z0-9_.=-]+', '-', name)[:60]}"
        folder = self.folder / "launches" / named
        with writing(self.folder):
            (folder / "channel").mkdir(parents=True)
        return folder

    def _plan(self, folder: Path, purpose: str, **more: Any) -> dict[str, Any]:
        more.setdefault("files_read", str((self.folder / "files-read.txt").absolute()))
        return launch_plan(folder / "channel", purpose, seed=self.seed, **more)

    def _launch(
        self,
        plan: dict[str, Any],
        folder: Path,
        timeout_s: float,
        poll: Poll | None = None,
        sensors: Sensors | None = None,
        contents: Contents | None = None,
        variables: Variables | None = None,
    ) -> LaunchResult:
        if self.drops_files:
            drop(self.folder / "files-read.txt")
        with writing(self.folder):
            result = launch(
                self.workload,
                plan,
                folder=folder,
                sandbox=self.sandbox,
                timeout_s=timeout_s,
                poll=poll,
                stdin_file=self.stdin_file,
                sensors=sensors,
                compile_cache=self._compile_cache,
                contents={**self.contents, **(contents or {})},
                variables={**self.variables, **(variables or {})},
            )
        shutil.rmtree(folder / "channel" / "staged", ignore_errors=True)  # by fast-storage
        self.escaped += [path for path in result.escaped_writes if path not in self.escaped]
        self.doubts += [doubt for doubt in result.doubts if doubt not in self.doubts]
        return result
