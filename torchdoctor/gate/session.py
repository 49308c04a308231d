"""What both gates share: the clock, the folder, the sandbox and the recorder of one gate."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from torchdoctor import __version__
from torchdoctor.bench.record import Recorder
from torchdoctor.gate.busy_machine import with_load
from torchdoctor.gate.settings import GateSettings
from torchdoctor.launch.escaped_writes import escape_doubts
from torchdoctor.launch.kept_input import keep_stdin
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.run_folder import gone_if_refused, new_run_folder
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.machine.environment import as_seen_by, environment
from torchdoctor.machine.load_beside import LoadBeside
from torchdoctor.observe.observation import Observation
from torchdoctor.reports.gate_facts import with_sentence
from torchdoctor.reports.wording import program_failed
from torchdoctor.schema import (
    Environment,
    Evidence,
    OtherLoad,
    ProgramFailure,
    ProgressEvent,
    Remark,
    Report,
    StepStatistics,
    Workload,
    WorkloadRecord,
    as_remark,
    fact,
)
from torchdoctor.schema.errors import Inconclusive, NoStepFound, ProgramFailed, TimedOut
from torchdoctor.schema.gate import GateReport

_OBSERVE_S = 5.0


class GateSession:
    """One gate while it runs; as a context it ends everything that it began."""

    recorder: Recorder
    sandbox: Sandbox

    def __init__(
        self, workload: Workload, settings: GateSettings, progress: Callable[[ProgressEvent], None]
    ) -> None:
        self.workload = workload
        self.settings = settings
        self._tell = progress
        self._began, self._created = time.monotonic(), datetime.now(timezone.utc)
        self._closing = contextlib.ExitStack()
        self.input_doubts: list[Evidence] = []  # of what was piped in
        self._other_load: OtherLoad | None = None  # while anything was measured

    def __enter__(self) -> GateSession:
        settings = self.settings
        workload = self.workload
        self._folder = new_run_folder(settings.output, workload.cwd, self._created)
        mode = "auto" if settings.sandbox else "none"
        with gone_if_refused(self._folder):
            self.sandbox = Sandbox.choose(mode, self._folder, workload, network=settings.network)
        self._closing.callback(self.sandbox.close)
        with gone_if_refused(self._folder):
            kept = keep_stdin(self._folder)
        self.input_doubts = [*filter(None, [workload.remark, kept.doubt])]
        self.recorder = Recorder(
            workload, self._folder, self.sandbox, settings.seed, kept.path, settings.timeout_s, True
        )
        self._closing.callback(self.recorder.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def spent_s(self) -> float:
        """Return seconds since the gate began."""
        return time.monotonic() - self._began

    def left_s(self) -> float:
        """Return seconds of the budget that are left."""
        return self.settings.budget_s - self.spent_s()

    def say(self, phase: str, message: str) -> None:
        """Tell what begins."""
        spent_s = self.spent_s()
        budget_s = self.settings.budget_s
        event = ProgressEvent(phase=phase, message=message, elapsed_s=spent_s, budget_s=budget_s)
        self._tell(event)

    def observe(self, arm: LaunchSpec, message: str, *, may_fail: bool = False) -> Observation:
        """Tell of a version and observe it in a launch of its own.

        Raise ProgramFailed, NoStepFound or TimedOut of the program: after enough steps too, unless
        it may fail. Ctrl-C is raised after enough steps, too.
        """
        self.say("observe", f"One launch observes {message}")
        settings = self.settings
        most_s = max(0.15 * settings.budget_s, _OBSERVE_S)
        launched = replace(arm, name=f"observe-{arm.name}")
        observed = self.recorder.observe(
            settings.step_on, _OBSERVE_S, most_s, settings.budget_s, launched
        )
        if observed.interrupted:
            raise KeyboardInterrupt
        if observed.failure is not None and not may_fail:
            raise program_failed(observed.failure, "it was not compared")
        return observed

    def environment(self, observed: Observation) -> Environment:
        """Return the machine, and the software as the program itself saw it."""
        machine = as_seen_by(
            observed.processes[0], environment(self.workload.python), observed.trainers
        )
        return replace(machine, sandbox=self.sandbox.mode)

    @contextlib.contextmanager
    def measuring(self, machine: Environment) -> Iterator[None]:
        """Measure meanwhile what others hold; not on nodes, which have a load of their own."""
        if self.settings.cluster is not None:
            yield
            return
        beside = LoadBeside(machine.cpus, self._folder)
        try:
            with beside.measuring():
                yield
        finally:
            held = beside.on_average()
            if held is not None:
                self._other_load = OtherLoad(held=held, usable=machine.cpus)

    def launch_doubts(self) -> list[Evidence]:
        """Return what the launches gave reason to doubt, and the sandbox they ran in."""
        escaped = escape_doubts(self.recorder.escaped, self.sandbox.mode)
        return [*self.input_doubts, *self.recorder.doubts, *escaped, *self.sandbox.doubts]

    def completed(self, report: GateReport, stored: Report | None = None) -> GateReport:
        """Return the report with what was launched, when, where and beside which load.

        `stored`: the report that was compared with.
        """
        return replace(
            with_sentence(with_load(report, self._other_load, stored)),
            torchdoctor_version=__version__,
            created=self._created.isoformat(timespec="seconds"),
            workload=_record(self.workload),
            network=self.recorder.network,
            run_folder=str(self._folder),
        )


def _record(workload: Workload) -> WorkloadRecord:
    return WorkloadRecord(command=workload.typed, cwd=workload.cwd)


def undecided(
    workload: Workload,
    reference: str,
    why: Evidence,
    *,
    interrupted: bool = False,
    broken: bool = False,
) -> GateReport:
    """Return a result without figures; `broken`: the working tree's program cannot be measured."""
    report = GateReport(
        torchdoctor_version=__version__,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        workload=_record(workload),
        environment=environment(workload.python),
        reference=reference,
        verdict="inconclusive",
        answer=[why],
        interrupted=interrupted,
        broken=broken,
    )
    return with_sentence(report)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the launches before the first pair showed, each of (reference, new)."""

    arms: tuple[LaunchSpec, LaunchSpec]
    versions: tuple[Observation, Observation]
    waits: list[tuple[StepStatistics, StepStatistics]]
    remarks: list[Remark] = field(default_factory=list)  # on either version


def observe_both(session: GateSession, arms: tuple[LaunchSpec, LaunchSpec], ref: str) -> Observed:
    """Observe the working tree, then the reference; in the other order too if waiting is judged."""
    new = session.observe(arms[1], "the working tree")
    try:
        old = session.observe(arms[0], ref, may_fail=True)
    except (ProgramFailed, NoStepFound, TimedOut) as error:
        why = f"The program of {ref} cannot be measured: {error.message}"
        raise Inconclusive(why, error.output_tail) from error
    has_batch_size = [observation.steps.samples_per_step is not None for observation in (old, new)]
    if has_batch_size[0] != has_batch_size[1]:
        where = ref if has_batch_size[0] else "the working tree"
        raise Inconclusive(
            f"Not comparable with {ref}: the size of a batch is known in {where} only, and time "
            "per step says nothing where a step may hold another number of samples."
        )
    of_old = [doubt for doubt in old.doubts if doubt not in new.doubts]
    if old.failure is not None:
        of_old.append(_failed(old.failure))
    remarks = [*map(as_remark, new.doubts), *(as_remark(doubt, of=ref) for doubt in of_old)]
    waits = [(old.steps, new.steps)]
    if session.settings.tolerances.get("data_loader_share") is not None:
        # Whichever reads first finds nothing in the page cache: the reference is first now.
        again = "version again: the wait for data"
        try:
            first = session.observe(arms[0], f"the reference {again}", may_fail=True)
            second = session.observe(arms[1], f"the new {again}", may_fail=True)
            waits.append((first.steps, second.steps))
        except (ProgramFailed, NoStepFound, TimedOut) as error:
            remarks.append(as_remark(fact("waits-in-one-order", reason=error.message)))
    reference_arm, new_arm = (
        replace(arm, boundary=observation.steps_found.boundary)
        for arm, observation in zip(arms, (old, new), strict=True)
    )
    return Observed(
        arms=(reference_arm, new_arm), versions=(old, new), waits=waits, remarks=remarks
    )


def _failed(failure: ProgramFailure) -> Evidence:
    """Return after how many steps a version failed by itself, and how."""
    if failure.exit_code < 0:
        return fact("version-killed", steps=failure.steps, signal=-failure.exit_code)
    return fact("version-failed", steps=failure.steps, exit_code=failure.exit_code)
