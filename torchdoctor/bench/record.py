"""Launches of one program: the `Recorder` starts it and turns what it leaves into records.

It decides nothing about fixes: a `LaunchSpec` says what is switched on.
"""

import itertools
import math
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torchdoctor.bench.launch_timing import last_switched_on, read_launch
from torchdoctor.launch import compile_cache
from torchdoctor.launch.contacts import contacts, network_use
from torchdoctor.launch.endings import said_besides
from torchdoctor.launch.launch import (
    BEGUN,
    LaunchResult,
    Poll,
    Program,
    WarmImage,
    launch,
    start_image,
)
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.launch.run_folder import writing
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.machine.sensor_columns import SensorColumns
from torchdoctor.machine.sensors import Sensors
from torchdoctor.machine.storage import drop, storage_facts, waits_for_input
from torchdoctor.observe import observation
from torchdoctor.observe.events import evaluates_training_loader, read_observed
from torchdoctor.observe.joined_window import JoinedWindow
from torchdoctor.observe.observation import Observation, ObservationWatch, Profiled
from torchdoctor.observe.padding import with_filled_rows
from torchdoctor.observe.step_finding import NoSteps, StepsFound, find_boundary
from torchdoctor.observe.steps import NoIterationError, step_statistics, window_ns
from torchdoctor.observe.window import ProfilerWindow
from torchdoctor.schema import (
    Boundary,
    Evidence,
    HostContact,
    LaunchTiming,
    NetworkUse,
    StorageFacts,
    SwitchedLaunch,
    Workload,
    fact,
)
from torchdoctor.schema.errors import NoStepFound, ProgramFailed, TimedOut, UsageError

_MOST_IMAGES = 2  # with files of their own, beside that of the untouched program
# Launches that take turns are held up so long before the end of the budget: those blocks count.
ENDS_BEFORE_S = 0.25
_IMAGE_SHARE = 0.5  # of the time that is left, for the imports of a warm image
_OBSERVED = LaunchSpec(name="observe")


class Recorder:
    """Starts the workload again and again, each launch in `<folder>/launches/<nn>-<name>/`.

    `seed` is given to a program that sets none, `stdin_file` is replayed to each launch, and
    `timeout_s` is the longest wait for the first training steps; if `forks`, launches are forked
    from a warm image of the program, where that is possible. Where there is a budget, `end_by`
    says when it ends.
    """

    def __init__(
        self,
        workload: Workload,
        folder: Path,
        sandbox: Sandbox,
        seed: int,
        stdin_file: Path | None,
        timeout_s: float,
        forks: bool = False,
    ) -> None:
        self._images: dict[frozenset[tuple[str, Any]], WarmImage | None] = {}
        self._image_numbers = itertools.count()
        self.image_s: float | None = None  # that the last image's imports took; None: no image
        self._forks = forks
        self._compiled = False
        self.workload = workload
        self.folder = folder
        self.sandbox = sandbox
        self.seed = seed
        self.timeout_s = timeout_s
        self.end_by_s = math.inf
        self.escaped: list[str] = []
        self.doubts: list[Evidence] = []
        self.contacts: list[list[HostContact]] = []  # of each launch
        self._launches = itertools.count(1)  # two may begin at the same moment
        self._observed: Path | None = None
        self._observing: LaunchResult | None = None
        self._observation: Callable[[int | None], Observation] | None = None  # given a rank
        self._kept = kept = compile_cache.kept_folder(workload) or folder / "compile-cache"
        with writing(folder):
            kept.mkdir(parents=True, exist_ok=True)
        self._program = Program(
            workload=workload,
            sandbox=sandbox,
            seed=seed,
            stdin_file=stdin_file,
            compile_cache=kept,
            run_folder=folder,
        )

    def end_by(self, end_by_s: float) -> None:
        """End whatever runs by then, a moment of `time.monotonic()`."""
        self.end_by_s = end_by_s

    @property
    def left_s(self) -> float:
        """Return the seconds that launches may still take; below 0 once they are over."""
        return self.end_by_s - time.monotonic()

    @property
    def network(self) -> NetworkUse | None:
        """Return what all launches so far sent to other machines; None: there was none."""
        return network_use(self.contacts, self.sandbox.network)

    def close(self) -> None:
        """Remove what only further launches would have needed."""
        for image in filter(None, self._images.values()):
            image.close()
        shutil.rmtree(self.folder / "compile-cache", ignore_errors=True)
        compile_cache.remove_oldest()

    def observe(
        self,
        step_on: str | None,
        enough_s: float,
        most_s: float,
        budget_s: float = math.inf,
        spec: LaunchSpec = _OBSERVED,
        joined: JoinedWindow | None = None,
    ) -> Observation:
        """Run the untouched program until its training steps are known well enough.

        `step_on`: what separates iterations, by the user's word; `enough_s`: of training, for at
        most `most_s`; `budget_s`: longest wait for the first steps; `spec`: another version of the
        program; `joined`: decides about a profiler window at its end. Raise ProgramFailed,
        NoStepFound or TimedOut with a sentence that says what to do.
        """
        plan = {"purpose": "observe", "sample_stacks": True, "watch_files": True}
        plan["batches_learn"] = step_on == "loader"  # the user says that batches are steps
        wait_s = min(self.timeout_s, budget_s)
        plan["window_on_request"] = joined is not None
        watch = ObservationWatch(step_on, enough_s, most_s, wait_s, joined)
        sensors = Sensors()
        forked = replace(spec, plan=plan, forked=True)
        result = self._launch(forked, wait_s + most_s, watch, sensors)
        if watch.serves is not None:
            raise NoStepFound(observation.told_of_server(watch.serves))
        if watch.gave_up:
            result = replace(result, ended="timed-out")
        self._observed = result.channel
        self._observing = result
        if result.exit_code and any(result.channel.glob("observed-*.json")):
            # It failed within the profiler window; what was before that counts.
            result = replace(result, ended="stopped", exit_code=None)
        self._observation = partial(
            _observation, result, sensors.stop(), step_on, spec.workload or self.workload
        )
        try:
            return self._observation(None)
        except (ProgramFailed, NoStepFound, TimedOut) as error:
            if isinstance(error, NoStepFound) and not (result.channel / BEGUN).exists():
                raise UsageError(
                    f"The program removed what was recorded of it, in {result.channel}: name a "
                    "folder with --output that it does not remove."
                ) from None
            error.args = (" ".join([*self._network_remarks(), str(error)]),)
            raise

    def _network_remarks(self) -> list[str]:
        """Return what goes with an error instead of a report: what was sent, or could not be."""
        if not self.sandbox.network:
            return ["No launch can reach the network (--network off)."]
        places = [contact.place for contact in self.network.sent_to] if self.network else []
        cut_off = "not only to read (--network off cuts it off)."
        return [f"The program connected to {place}, {cut_off}" for place in places[:1]]

    def observed_on(self, rank: int) -> Observation:
        """Return what the observed launch shows with this rank as the main process."""
        assert self._observation is not None
        return self._observation(rank)

    def joined_window(self) -> Profiled:
        """Return what the window at the observing launch's end showed; ProgramFailed: nothing."""
        assert self._observing is not None
        return observation.profiled_window(self._observing)

    def storage(self, observed: Observation) -> StorageFacts | None:
        """Return where the files lie that the observed loop waited for; None: it waits for none.

        Reads some of them again: up to some seconds.
        """
        if self._observed is None or not waits_for_input(observed.steps):
            return None
        return storage_facts(self._observed, self.folder)

    def profile(
        self,
        boundary: Boundary,
        window: ProfilerWindow,
        timeout_s: float,
        *,
        cold: bool,
        forked: bool,
    ) -> Profiled:
        """Record a profiler window in a launch never timed; ProgramFailed: no trace came of it."""
        plan = {
            "purpose": "profile",
            "warmup_steps": window.warmup_steps,
            "measure_steps": 10**9,
            "profile": window.plan,
        }
        spec = LaunchSpec(name="profile", boundary=boundary, plan=plan, forked=forked)
        result = self._launch(spec, timeout_s, cold=cold)
        if result.ended == "interrupted":
            raise KeyboardInterrupt
        return observation.profiled_window(result)

    def image(self, spec: LaunchSpec = UNTOUCHED) -> WarmImage | None:
        """Return what launches with the files of `spec` are forked from; None: nothing."""
        files = frozenset(spec.contents.items())
        if self._forks and files not in self._images:
            self._close_oldest()
            folder = self.folder.absolute() / f"image-{next(self._image_numbers)}"
            with writing(self.folder):
                most_s = _IMAGE_SHARE * self.left_s
                began_s = time.monotonic()
                image = start_image(self._program, folder, spec, most_s)
            self._images[files] = image
            self.image_s = self.image_s if image is None else time.monotonic() - began_s
        return self._images.get(files)

    def _close_oldest(self) -> None:
        """Make room for an image with files of its own: each holds the program in memory."""
        own_files = [files for files in self._images if files]
        for files in own_files[: 1 - _MOST_IMAGES]:
            image = self._images.pop(files)
            if image is not None:
                image.close()

    def time(
        self, spec: LaunchSpec, timeout_s: float, poll: Poll | None = None, cold: bool = False
    ) -> LaunchTiming:
        """Measure one launch: its window, or its blocks beside another launch.

        `poll` is called while it runs, in a thread where it takes turns; True ends the launch.
        `cold`: the files that training reads are dropped from the page cache before.
        """
        sensors = Sensors(interval_s=0.5)
        result = self._launch(spec, timeout_s, poll, sensors, cold)
        timing = read_launch(result, spec, sensors.stop().peak_memory_bytes())
        timing = replace(timing, cut_off=self._was_cut_off(result))
        compiled = not self._compiled and any("compile_s" in fix.details for fix in timing.fixes)
        self._compiled |= compiled
        if compiled and compile_cache.is_next_run(self.workload, self._kept):
            self.doubts.append(fact("compiled-before", variable=compile_cache.LIMIT))
        return timing

    def switch(self, spec: LaunchSpec, sizes: list[int], timeout_s: float) -> SwitchedLaunch:
        """Measure the blocks of one launch in which arms and the untouched program take turns.

        `sizes`: number of fixes in each arm. Where it did not end "measured", whole blocks count.
        """
        result = self._launch(spec, timeout_s)
        timing = read_launch(result, spec)
        # The probe lists the fixes of all arms one after another.
        fixes = iter(timing.fixes)
        failed = timing.ended not in ("measured", "interrupted") and result.exit_code != 0
        failed = failed and not self._was_cut_off(result)
        return SwitchedLaunch(
            ended=timing.ended,
            why=timing.why,
            blocks=timing.blocks,
            arms=[list(itertools.islice(fixes, size)) for size in sizes],
            wall_s=result.wall_s,
            failed_in=last_switched_on(result.channel) if failed else None,
        )

    def _was_cut_off(self, result: LaunchResult) -> bool:
        return result.ended in ("timed-out", "stopped") and self.left_s <= ENDS_BEFORE_S

    def _launch(
        self,
        spec: LaunchSpec,
        timeout_s: float,
        poll: Poll | None = None,
        sensors: Sensors | None = None,
        cold: bool = False,
    ) -> LaunchResult:
        if cold:
            drop(self.folder / "files-read.txt")
        name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", spec.name)[:60]
        folder = self.folder / "launches" / f"{next(self._launches):03d}-{name}"
        read = str((self.folder / "files-read.txt").absolute())
        spec = replace(spec, plan={"files_read": read, **spec.plan})
        program = replace(self._program, image=self.image(spec) if spec.forked else None)
        with writing(self.folder):
            (folder / "channel").mkdir(parents=True)
            limit_s = max(min(timeout_s, self.left_s), 0.0)
            result = launch(program, spec, folder, timeout_s=limit_s, poll=poll, sensors=sensors)
        shutil.rmtree(folder / "channel" / "staged", ignore_errors=True)  # by fast-storage
        self.contacts.append(contacts(result.channel))
        self.escaped += [path for path in result.escaped_writes if path not in self.escaped]
        self.doubts += [doubt for doubt in result.doubts if doubt not in self.doubts]
        return result


def _observation(
    result: LaunchResult,
    columns: SensorColumns,
    step_on: str | None,
    workload: Workload,
    rank: int | None,
) -> Observation:
    """Return what an observing launch showed, or raise what keeps it from being used.

    `rank`: the one that counts as the main process; None: the lowest.
    """
    events, facts, doubts = read_observed(result.channel)
    boundaries = find_boundary(events, facts, step_on, rank)
    interrupted = result.ended == "interrupted"
    if interrupted and isinstance(boundaries, NoSteps):
        raise KeyboardInterrupt
    observation.check_usable(result, events, boundaries, workload)
    assert isinstance(boundaries, StepsFound)
    trainers = [events[pid] for pid in boundaries.trainers]
    try:
        steps = step_statistics(trainers, boundaries, program_ended=result.ended == "exited")
    except NoIterationError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise NoStepFound(
            "Only one training step was seen before the program ended; give it more data "
            f"or steps, or say with --step-on what a step is. {said_besides(result)}".rstrip()
        ) from None
    begin, end = window_ns(trainers[0], boundaries, steps)
    processes = with_filled_rows(observation.trainers_first(facts, boundaries.trainers))
    used = [
        used_device
        for process in processes[: steps.trainers]
        for used_device in process.used_devices
    ]
    columns = columns.of_devices({device.uuid for device in used})
    return Observation(
        steps_found=boundaries,
        steps=steps,
        processes=processes,
        sensors=columns.statistics(begin, end, main_pid=boundaries.trainers[0]),
        wall_s=result.wall_s,
        start_s=observation.step_start_s(trainers[0], boundaries, result),
        doubts=doubts,
        failure=observation.own_failure(result, steps.total_steps_seen),
        interrupted=interrupted,
        logs_phases=any(evaluates_training_loader(log) for log in trainers),
    )
