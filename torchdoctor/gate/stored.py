"""A gate against a stored report: fresh launches of now against its launches, where comparable."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from statistics import geometric_mean

from torchdoctor import __version__
from torchdoctor.errors import Inconclusive, UsageError
from torchdoctor.gate.decision import against_stored, state
from torchdoctor.gate.figures import sentence
from torchdoctor.gate.pairs import is_per_step
from torchdoctor.gate.settings import GateSettings
from torchdoctor.recording.environment import environment
from torchdoctor.recording.record import Recorder
from torchdoctor.recording.run_folder import keep_stdin, new_run_folder
from torchdoctor.recording.sandbox import Sandbox
from torchdoctor.recording.window import choose_window
from torchdoctor.records import (
    Environment,
    Interval,
    LaunchTiming,
    ProgressEvent,
    Report,
    Workload,
    WorkloadRecord,
)
from torchdoctor.records.gate import GateMetric, GateReport
from torchdoctor.trials.compare import seconds_per_sample

FEWEST_STORED, LAUNCHES = 3, 5


def gate_against_report(
    workload: Workload,
    stored: Report,
    name: str,
    settings: GateSettings,
    progress: Callable[[ProgressEvent], None],
) -> GateReport:
    """Launch the program a few times and compare with a stored report's launches.

    Args:
        workload: the program of now.
        stored: of an earlier `run` of the same program on the same machine.
        name: what to call it.
        settings: as of a gate against a commit.
        progress: told whenever something begins.

    Raises:
        Inconclusive: another machine, driver, torch or workload, or too few stored launches.
        ProgramFailed, NoStepFound, TimedOut: of the program.
    """
    began, created = time.monotonic(), datetime.now(timezone.utc)
    found = environment(workload.python)
    launches = stored.baseline.launches_s
    if len(launches) < FEWEST_STORED:
        raise Inconclusive(
            f"{name} holds {len(launches)} launches of the untouched program, and "
            f"{FEWEST_STORED} are needed: make it with torchdoctor run, fixes included."
        )
    folder = new_run_folder(settings.output, workload.cwd, created)
    with Sandbox.choose("auto" if settings.sandbox else "none", folder, workload) as sandbox:
        recorder = Recorder(
            workload, folder, sandbox, settings.seed, keep_stdin(folder), settings.timeout_s
        )
        progress(ProgressEvent(phase="observe", message="the program", budget_s=settings.budget_s))
        most = max(0.15 * settings.budget_s, 5.0)
        seen = recorder.observe(settings.step_on, 5.0, most, settings.budget_s)
        found = _with_program(found, seen.processes[0].torch, seen.processes[0].cuda)
        if reason := _not_comparable(workload, found, stored):
            raise Inconclusive(f"{name} is not comparable: {reason}.")
        window = choose_window(seen.steps, settings.budget_s / 2)
        timings: list[LaunchTiming] = []
        for number in range(LAUNCHES):
            progress(
                ProgressEvent(
                    phase="measure",
                    message=f"launch {number + 1} of {LAUNCHES}",
                    elapsed_s=time.monotonic() - began,
                    budget_s=settings.budget_s,
                )
            )
            timings.append(
                recorder.time("new", seen.found.boundary, window, [], 600.0, 0, seen.steps.trainers)
            )
        recorder.close()
    by = "mean" if seen.steps.two_modes else "median"
    per_step = is_per_step(timings)
    now = [x for timing in timings if (x := seconds_per_sample(timing, by, per_step))]
    if len(now) < FEWEST_STORED:
        raise Inconclusive(f"Only {len(now)} of {LAUNCHES} launches could be measured.")
    tolerance = settings.tolerances["step_time"]
    verdict, ratio, limit = against_stored(launches, now, tolerance)
    interval = Interval(estimate=ratio, low=ratio / limit, high=ratio * limit)
    row = GateMetric(
        name="step_time",
        reference=geometric_mean(launches),
        new=geometric_mean(now),
        unit="s/step" if per_step else "s/sample",
        ratio=interval,
        tolerance=tolerance,
        verdict=state(verdict, interval, tolerance),
    )
    doubts = [
        "Compared with launches of another time: what else ran on the machine then and now is in "
        "the figures. A gate against a commit (--against) measures both side by side."
    ]
    return GateReport(
        torchdoctor_version=__version__,
        created=created.isoformat(timespec="seconds"),
        workload=WorkloadRecord(command=workload.command, cwd=workload.cwd),
        environment=found,
        reference=name,
        verdict=verdict,
        sentence=sentence([row], verdict, name),
        metrics=[row],
        blind_spot=max(ratio * limit - 1.0, 0.0),
        measured="stored",
        per="step" if per_step else "sample",
        doubts=[*doubts, *recorder.doubts],
        run_folder=str(folder),
    )


def read_stored(path: Path) -> Report:
    """The stored report. Raises UsageError."""
    from torchdoctor.record_files import read_report

    report = read_report(path)
    if report.baseline.step_time_s is None:
        raise UsageError(f"{path} holds no step time: make it with torchdoctor run.")
    return report


def _with_program(found: Environment, torch: str | None, cuda: str | None) -> Environment:
    from dataclasses import replace

    return replace(found, torch=torch or found.torch, cuda=cuda)


def _not_comparable(workload: Workload, now: Environment, stored: Report) -> str | None:
    """What differs, in words, or None."""
    before = stored.environment
    if stored.workload.command[1:] != workload.command[1:]:
        return "it is of another command"
    for what, old, new in (
        ("processor", before.cpu, now.cpu),
        ("number of usable CPUs", before.usable_cpus, now.usable_cpus),
        ("GPU", [g.name for g in before.gpus], [g.name for g in now.gpus]),
        ("driver", before.driver, now.driver),
        ("torch", before.torch, now.torch),
        ("Python", before.python, now.python),
    ):
        if old != new:
            return f"another {what} ({old} then, {new} now)"
    return None
