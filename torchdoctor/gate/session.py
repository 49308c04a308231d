"""What both gates share: the clock, the folder, the sandbox and the recorder of one gate."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from types import TracebackType

from torchdoctor import __version__
from torchdoctor.gate.settings import GateSettings
from torchdoctor.launch.escaped_writes import escape_doubt
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.run_folder import keep_stdin, new_run_folder
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.machine.environment import environment
from torchdoctor.observe.observation import Observation
from torchdoctor.pairs.record import Recorder
from torchdoctor.reports.wording import program_failed
from torchdoctor.words import Environment, ProgressEvent, Workload, WorkloadRecord
from torchdoctor.words.gate import GateReport

_OBSERVE_S = 5.0


class GateSession:
    """One gate while it runs; as a context it ends everything that it began.

    Args:
        workload: the program in the working tree.
        settings: what the user asked for.
        progress: told whenever something begins.
    """

    recorder: Recorder
    sandbox: Sandbox

    def __init__(
        self,
        workload: Workload,
        settings: GateSettings,
        progress: Callable[[ProgressEvent], None],
    ) -> None:
        self.workload, self.settings, self._tell = workload, settings, progress
        self._began, self._created = time.monotonic(), datetime.now(timezone.utc)
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> GateSession:
        settings = self.settings
        self._folder = new_run_folder(settings.output, self.workload.cwd, self._created)
        mode = "auto" if settings.sandbox else "none"
        self.sandbox = Sandbox.choose(mode, self._folder, self.workload)
        self._closing.callback(self.sandbox.close)
        stdin = keep_stdin(self._folder)
        self.recorder = Recorder(
            self.workload, self._folder, self.sandbox, settings.seed, stdin, settings.timeout_s
        )
        self._closing.callback(self.recorder.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.close()

    def spent_s(self) -> float:
        """Return seconds since the gate began."""
        return time.monotonic() - self._began

    def left_s(self) -> float:
        """Return seconds of the budget that are left."""
        return self.settings.budget_s - self.spent_s()

    def say(self, phase: str, message: str) -> None:
        """Tell what begins."""
        self._tell(
            ProgressEvent(
                phase=phase,
                message=message,
                elapsed_s=self.spent_s(),
                budget_s=self.settings.budget_s,
            )
        )

    def observe(self, arm: LaunchSpec, *, may_fail: bool = False) -> Observation:
        """Observe one version in a launch of its own.

        Args:
            arm: the version.
            may_fail: after enough steps; else such a failure is an error, for it is no pass.

        Raises:
            ProgramFailed, NoStepFound, TimedOut: of the program.
            KeyboardInterrupt: also where Ctrl-C came after enough steps.
        """
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
        machine, program = environment(self.workload.python), observed.processes[0]
        return replace(
            machine,
            torch=program.torch or machine.torch,
            cuda=program.cuda,
            sandbox=self.sandbox.mode,
        )

    def launch_doubts(self) -> list[str]:
        """Return what the launches gave reason to doubt, and the sandbox they ran in."""
        escaped = escape_doubt(self.recorder.escaped, self.sandbox.mode)
        weak = [self.sandbox.doubt] if self.sandbox.doubt else []
        return [*self.recorder.doubts, *escaped, *weak]

    def completed(self, report: GateReport) -> GateReport:
        """Return the report with what was launched, when and where."""
        return replace(
            report,
            torchdoctor_version=__version__,
            created=self._created.isoformat(timespec="seconds"),
            workload=WorkloadRecord(command=self.workload.command, cwd=self.workload.cwd),
            doubts=list(dict.fromkeys(report.doubts)),
            run_folder=str(self._folder),
        )


def undecided(
    workload: Workload, reference: str, why: str, *, interrupted: bool = False, broken: bool = False
) -> GateReport:
    """Return a result without figures, so that readers of the files learn the reason.

    Args:
        workload: what was to be compared.
        reference: with what.
        why: it could not be; a sentence.
        interrupted: by Ctrl-C.
        broken: it is the working tree's program that cannot be measured.
    """
    return GateReport(
        torchdoctor_version=__version__,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        workload=WorkloadRecord(command=workload.command, cwd=workload.cwd),
        environment=environment(workload.python),
        reference=reference,
        verdict="inconclusive",
        sentence=why,
        interrupted=interrupted,
        broken=broken,
    )
