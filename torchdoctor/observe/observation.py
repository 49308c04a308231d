"""The observing and the profiled launch: when they have shown enough, and what they showed."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchdoctor.launch.endings import besides, by_layer, how_it_ended, said_besides
from torchdoctor.launch.launch import LaunchResult, RunningLaunch
from torchdoctor.launch.listening import ServerWatch
from torchdoctor.observe.events import Events, read_channel
from torchdoctor.observe.joined_window import JoinedWindow
from torchdoctor.observe.step_finding import NoSteps, StepsFound, boundary_rows, find_boundary
from torchdoctor.observe.steps import step_durations, step_statistics
from torchdoctor.schema import (
    Evidence,
    ProcessFacts,
    ProgramFailure,
    SensorStatistics,
    StepStatistics,
    Workload,
)
from torchdoctor.schema.errors import NoStepFound, ProgramFailed, TimedOut, UsageError
from torchdoctor.schema.program import ANALYSED

if TYPE_CHECKING:
    from torchdoctor.trace.ranks import RankTrace

_LOOK_EVERY_S = 0.5
_ENOUGH_STEPS = 40
FEW_STEPS = 12
_LONG_STEPS = 8  # where each takes a second
FEWEST_STEPS = 3
_REFUSED = re.compile(r"unrecognized|unknown|no such option", re.IGNORECASE)
_LONGER = (
    "Where it had not come to its loop yet (it loads its data, or evaluates first), give it "
    "longer with --budget and --timeout, or less data."
)


@dataclass
class ObservationWatch:
    """Decides when the observing launch has shown enough."""

    step_on: str | None  # what separates iterations, where the user says so
    enough_s: float  # time of training that is worth watching
    most_s: float  # time after the first steps at which it ends in any case, if there are a few
    wait_s: float  # longest wait for the first steps
    joined: JoinedWindow | None = None  # at its end, where that is wanted
    gave_up: bool = False  # no steps came in time
    serves: int | None = None  # the port where it waits for requests, and does nothing else
    _server: ServerWatch = field(default_factory=ServerWatch)
    _next_look: float = 0.0
    _first_s: float | None = None  # when the first steps were seen

    def __call__(self, running: RunningLaunch) -> bool:
        """Return True when the launch may be stopped; reads the step log about twice a second."""
        if self.joined is not None and self.joined.asked:
            return self.joined.is_over(running)
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY_S
        events, facts, _ = read_channel(running.channel)
        steps = find_boundary(events, facts, self.step_on)
        if isinstance(steps, NoSteps):
            self.gave_up = running.elapsed_s > self.wait_s
            return self._only_serves(running, facts) or self.gave_up
        durations = step_durations(events[steps.trainers[0]], steps)
        if self._first_s is None:
            self._first_s = running.elapsed_s - float(durations.sum())
        if len(durations) >= FEWEST_STEPS and running.elapsed_s - self._first_s > self.most_s:
            return True  # it hangs, or does something else than training
        if not steps.is_decided:
            return len(durations) >= FEWEST_STEPS and float(durations.sum()) >= self.most_s
        # Reading grows with the log: look less often at a program with very many events.
        missing_s = self.enough_s - float(durations.sum())
        self._next_look += min(10 * (time.monotonic() - now), max(missing_s, 0.0))
        asked = (
            (_ENOUGH_STEPS, self.enough_s),
            (_LONG_STEPS, 2 * self.enough_s),
            (FEWEST_STEPS, self.most_s),
        )
        if not any(len(durations) >= n and durations.sum() >= seconds for n, seconds in asked):
            return False
        return not self._ask_for_window(running, events, steps)

    def _only_serves(self, running: RunningLaunch, facts: Mapping[int, ProcessFacts]) -> bool:
        """Return whether the program waits for requests that nobody makes."""
        # The processes of a job listen for each other, and wait for the last of them.
        if running.root_pid is None or any((fact.world_size or 1) > 1 for fact in facts.values()):
            return False
        waits = self._server.only_waits(running.root_pid, running.elapsed_s)
        if waits or self.gave_up:
            self.serves = self._server.port
        return waits

    def _ask_for_window(
        self, running: RunningLaunch, events: Mapping[int, Events], boundaries: StepsFound
    ) -> bool:
        """Return True if the launch goes on for a profiler window."""
        # Several trainers would begin theirs at different steps, and wait for each other.
        if self.joined is None or len(boundaries.trainers) > 1:
            return False
        if boundaries.boundary.every > 1:
            return False
        [number], boundary = boundaries.trainers, boundaries.boundary
        trainer = events[number]
        steps = step_statistics([trainer], boundaries, program_ended=False)
        first = boundary_rows(trainer, boundary)[0]
        start_s = float(trainer.t_ns[first]) / 1e9 - running.begin_s
        return self.joined.ask(running, number, boundary, steps, start_s)


def told_of_server(port: int) -> str:
    """Return what to do about a program that waits for requests, in one sentence."""
    return (
        f"No step was found: the program listens on port {port} and waits for requests, so write a "
        "script that calls what answers one (the handler) in a loop, and give that script to "
        "torchdoctor run."
    )


def check_usable(
    result: LaunchResult,
    events: dict[int, Events],
    outcome: StepsFound | NoSteps,
    workload: Workload,
) -> None:
    """Raise the error that explains it if the launch has too few steps."""
    steps = 0
    if isinstance(outcome, StepsFound):
        steps = len(step_durations(events[outcome.trainers[0]], outcome))
    failed = result.ended == "exited" and result.exit_code != 0
    layer = f" {words}" if (words := said_besides(result)) else ""
    if failed and steps < FEW_STEPS:
        raise ProgramFailed(
            f"The program failed before it could be measured ({how_it_ended(result)}, after "
            f"{steps} whole steps).{layer}{_what_to_do(result, workload)}",
            result.exit_code,
            result.output_tail.strip(),
        )
    if result.ended == "timed-out" and steps < FEWEST_STEPS:
        problem = f"{steps} were seen"
        todo = ""
        if isinstance(outcome, NoSteps):
            problem = outcome.reason
            todo = f" {outcome.advice}"
        raise TimedOut(
            f"Stopped after {result.wall_s:.0f} s without enough steps: "
            f"{problem.rstrip('.')}.{todo} {_LONGER}{layer}"
        )
    if isinstance(outcome, NoSteps):
        raise NoStepFound(f"No step was found: {outcome.reason} {outcome.advice}{layer}")


def own_failure(result: LaunchResult, steps: int) -> ProgramFailure | None:
    """Return how a program failed after enough steps; None: it did not, or was stopped."""
    if result.ended != "exited" or not result.exit_code:
        return None
    tail = result.output_tail.strip()
    return ProgramFailure(
        exit_code=result.exit_code, steps=steps, output_tail=tail, besides=besides(result)
    )


def _what_to_do(result: LaunchResult, workload: Workload) -> str:
    output = result.output_tail.strip()
    todo = "Make it run without torchdoctor first."
    if not output:
        return f" It printed nothing. {todo}"
    if by_layer(result) is not None:  # which says what to do
        return ""
    options = {word.partition("=")[0] for word in workload.command if word.startswith("--")}
    refused = sorted(option for option in options if option in output)
    if refused and _REFUSED.search(output):
        todo = (
            f"{', '.join(refused)} was passed to the program: write torchdoctor's own options "
            "before the script."
        )
    return f" {todo}"


def step_start_s(trainer: Events, steps: StepsFound, result: LaunchResult) -> float:
    """Return the seconds from the launch's start to the first iteration."""
    total = float(step_durations(trainer, steps).sum())
    most = max(result.wall_s - total, 0.0)
    if result.began_s is None:
        return most
    # Not what follows the last iteration: an evaluation, a checkpoint, the end of the process.
    first = float(trainer.t_ns[boundary_rows(trainer, steps.boundary)[0]]) / 1e9 - result.began_s
    return first if 0.0 <= first <= most else most


def trainers_first(
    facts: Mapping[int, ProcessFacts], trainers: Sequence[int]
) -> list[ProcessFacts]:
    """Return the facts of all processes: main trainer, other trainers, the rest; never nothing."""
    first = [facts[pid] for pid in trainers if pid in facts]
    rest = [fact for pid, fact in sorted(facts.items()) if pid not in trainers]
    return [*first, *rest] or [ProcessFacts(pid=trainers[0])]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The results of the first launch."""

    steps_found: StepsFound
    steps: StepStatistics
    processes: list[ProcessFacts]  # trainers first, the main one at 0
    sensors: SensorStatistics
    wall_s: float
    start_s: float  # until the first boundary
    doubts: list[Evidence] = field(default_factory=list)
    failure: ProgramFailure | None = None  # of the program by itself, after enough steps
    interrupted: bool = False  # by Ctrl-C; what was seen until then counts
    logs_phases: bool = False  # samples of training and evaluation are not told apart otherwise

    @property
    def trainers(self) -> list[ProcessFacts]:
        """Return the facts of the processes that train."""
        return self.processes[: self.steps.trainers]

    @property
    def gpu_uuids(self) -> set[str]:
        """Return the UUIDs of the GPUs in use, as far as torch tells them."""
        used = [device for process in self.trainers for device in process.used_devices]
        return {device.uuid for device in used if device.uuid is not None}


def without_yielding(observed: Observation, yielded_cpus: float | None) -> Observation:
    """Return an observation without the load of programs that give way to this one."""
    load = observed.sensors.other_load_cpus
    if load is None or not yielded_cpus:
        return observed
    sensors = replace(observed.sensors, other_load_cpus=max(load - yielded_cpus, 0.0))
    return replace(observed, sensors=sensors)


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """What the profiled launch showed: a trace of each rank, and what hooks saw after them."""

    traces: list["RankTrace"]
    facts: Mapping[int, ProcessFacts]

    @property
    def has_device(self) -> bool:
        """Return True if a trace holds work of a device."""
        return any(trace.statistics.has_device for trace in self.traces)

    def largest(self) -> "RankTrace":
        """Return the trace that holds most, of processes that are not ranks of one job."""
        return max(self.traces, key=lambda trace: Path(trace.statistics.path).stat().st_size)

    def added_to(self, processes: list[ProcessFacts], trace: str) -> list[ProcessFacts]:
        """Return the observed processes; the first has what only this trace's process shows."""
        process = self.facts.get(int(Path(trace).name.split("-")[1].split(".")[0]))
        if process is None or not process.analysed_steps:  # the program ended before
            return processes
        analysed = {name: getattr(process, name) for name in ANALYSED}
        return [replace(processes[0], **analysed), *processes[1:]]


def profiled_window(result: LaunchResult) -> Profiled:
    """Read the traces of a launch; raise ProgramFailed if there is none."""
    from torchdoctor.trace.ranks import read_ranks

    traces = sorted(result.channel.glob("trace-*.json.gz"))
    if not traces:
        raise ProgramFailed(
            f"The profiler window gave no trace ({how_it_ended(result)}).", result.exit_code
        )
    try:
        read, _ = read_ranks(list(map(str, traces)))
    except UsageError as error:
        raise ProgramFailed(f"The profiler's trace cannot be read: {error}") from error
    return Profiled(traces=read, facts=read_channel(result.channel)[1])
