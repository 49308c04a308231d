"""A gate against a stored report: fresh launches of now against its launches, where comparable."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import geometric_mean

from torchdoctor import __version__
from torchdoctor.facts.other_load import load_of
from torchdoctor.gate.decision import against_stored, state
from torchdoctor.gate.figures import memory, peaks, rate, waiting
from torchdoctor.gate.observing import environment_of, launch_doubts, observe_new
from torchdoctor.gate.sentence import Basis, sentence
from torchdoctor.gate.settings import GateSettings
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.launch.run_folder import keep_stdin, new_run_folder
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import choose_window
from torchdoctor.pairs.measurement import Pace, ProgramLaunches
from torchdoctor.pairs.pair_times import is_per_step, seconds_per_sample, usable
from torchdoctor.pairs.record import Recorder
from torchdoctor.trials.compare import has_two_modes
from torchdoctor.words import (
    Environment,
    LaunchTiming,
    ProgressEvent,
    Report,
    SensorStatistics,
    StepStatistics,
    Workload,
    WorkloadRecord,
)
from torchdoctor.words.errors import Inconclusive, UsageError
from torchdoctor.words.figures import seconds
from torchdoctor.words.gate import GateMetric, GateReport

_SEES_NOTHING = 10.0  # times as long, from which on alone a comparison would fail
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
    launches = stored.baseline.launches_s
    if len(launches) < FEWEST_STORED:
        raise Inconclusive(
            f"{name} holds {len(launches)} launches of the untouched program, and "
            f"{FEWEST_STORED} are needed: make it with torchdoctor run, fixes included."
        )

    def say(phase: str, message: str) -> None:
        elapsed_s = time.monotonic() - began
        progress(
            ProgressEvent(
                phase=phase, message=message, elapsed_s=elapsed_s, budget_s=settings.budget_s
            )
        )

    folder = new_run_folder(settings.output, workload.cwd, created)
    with Sandbox.choose("auto" if settings.sandbox else "none", folder, workload) as sandbox:
        recorder = Recorder(
            workload, folder, sandbox, settings.seed, keep_stdin(folder), settings.timeout_s
        )
        say("observe", "the program")
        seen = [observe_new(recorder, UNTOUCHED, settings)]
        found = environment_of(workload, seen[0], sandbox)
        if reason := not_comparable(workload, found, seen[0].steps, stored):
            raise Inconclusive(f"{name} is not comparable: {reason}.")
        if settings.tolerances.get("data_loader_share") is not None:
            # The first launch reads from a cold disk.
            say("observe", "the program again: the wait for data")
            seen.append(observe_new(recorder, UNTOUCHED, settings))
        ends_s = began + settings.budget_s
        timings = launched(recorder, seen[0], settings, ends_s, say)
        recorder.close()
        doubts = [*seen[0].doubts, *launch_doubts(recorder, sandbox)]
    doubts += load_doubts(stored, [one.sensors for one in seen], found.cpus)
    report = stored_report(stored, name, settings, seen, timings)
    return replace(
        report,
        created=created.isoformat(timespec="seconds"),
        workload=WorkloadRecord(command=workload.command, cwd=workload.cwd),
        environment=found,
        doubts=list(dict.fromkeys([*report.doubts, *doubts])),
        run_folder=str(folder),
    )


def launched(
    recorder: Recorder,
    seen: Observation,
    settings: GateSettings,
    ends_s: float,
    say: Callable[[str, str], None],
) -> list[LaunchTiming]:
    """Five timed launches, or as many as there is time for: never fewer than three.

    Args:
        recorder: launches the program.
        seen: of its observing launch.
        settings: what the user asked for.
        ends_s: `time.monotonic()` at which the time is up.
        say: told before each.

    Raises:
        Inconclusive: so many failed that three cannot be measured.
        KeyboardInterrupt: also of a launch that was interrupted.
    """
    loaders = seen.processes[0].loaders
    window = choose_window(seen.steps, settings.budget_s / 2, loaders)
    window = window.overruled(settings.steps, settings.warmup)
    timings: list[LaunchTiming] = []
    launches = ProgramLaunches(recorder=recorder, pace=Pace.of(seen), window=window)
    longest_s, measured = 0.0, 0
    for number in range(LAUNCHES):
        begun = time.monotonic()
        if measured >= FEWEST_STORED and begun + longest_s > ends_s:
            break
        say("measure", f"launch {number + 1} of {LAUNCHES}")
        timings.append(launches.alone(UNTOUCHED, math.inf))
        if timings[-1].ended == "interrupted":
            raise KeyboardInterrupt
        longest_s = max(longest_s, time.monotonic() - begun)
        measured += usable(timings[-1])
        failed = len(timings) - measured
        if failed > LAUNCHES - FEWEST_STORED:
            last = next(x.reason or x.ended for x in reversed(timings) if not usable(x))
            raise Inconclusive(
                f"{failed} of {len(timings)} launches could not be measured, and "
                f"{FEWEST_STORED} of {LAUNCHES} are needed: {last}"
            )
    return timings


def stored_report(
    stored: Report,
    name: str,
    settings: GateSettings,
    seen: Sequence[Observation],
    timings: list[LaunchTiming],
) -> GateReport:
    """Verdict, sentence and rows; what was run, and where, is filled in by the caller.

    Args:
        stored: the report that is compared with.
        name: what to call it.
        settings: what the user asked for.
        seen: observing launches of now.
        timings: timed launches of now.

    Raises:
        Inconclusive: the size of a batch is known then or now only, or the stored launches differ
            so much that they can prove nothing.
    """
    by = stored_by(stored)
    per_step = is_per_step(timings)
    then = stored.baseline.launches_per  # None: an older report that does not say
    if then is not None and (then == "step") != per_step:
        raise Inconclusive(
            f"{name} is not comparable: its times are per {then}, those of now are not, because "
            "the size of a batch is known in one of them only."
        )
    now = [x for timing in timings if (x := seconds_per_sample(timing, by, per_step))]
    before = stored.baseline.launches_s
    tolerance = settings.tolerances["step_time"]
    compared = against_stored(before, now, tolerance)
    time_row = GateMetric(
        name="step_time",
        reference=geometric_mean(before),
        new=geometric_mean(now),
        unit="s/step" if per_step else "s/sample",
        ratio=compared.ratio,
        tolerance=tolerance,
        verdict=state(compared.verdict, compared.ratio, tolerance),
    )
    rows = [time_row, *_further_rows(stored, settings, seen, timings, time_row)]
    worse = any(row.verdict == "worse" for row in rows)
    if not worse and compared.chance > _SEES_NOTHING:
        raise Inconclusive(
            f"The {len(before)} stored launches lie so far apart ({seconds(min(before))} to "
            f"{seconds(max(before))} a {'step' if per_step else 'sample'}) that ten times the "
            "time would not be seen: store a new report from a quiet machine, or compare with a "
            "commit (--against)."
        )
    verdict = "slower" if worse else "not slower"
    fails_from = (
        f"With the {len(before)} stored launches, which differ as they do, a gate fails from "
        f"{compared.limit:.3f} on."
    )
    return GateReport(
        torchdoctor_version=__version__,
        workload=WorkloadRecord(command=[]),
        environment=Environment(),
        reference=name,
        verdict=verdict,
        sentence=sentence(rows, verdict, name, Basis(decides=fails_from, typical=by == "median")),
        metrics=rows,
        blind_spot=max(compared.ratio.high - 1.0, 0.0),
        measured="stored",
        per="step" if per_step else "sample",
        doubts=_doubts(by, seen, timings),
    )


def stored_by(stored: Report) -> str:
    """ "mean" or "median": what the stored launches hold of their steps, also of older reports."""
    if stored.baseline.launches_by is not None:
        return stored.baseline.launches_by
    time_s = stored.baseline.step_time_s
    two_modes = stored.steps is not None and stored.steps.two_modes
    return "mean" if two_modes or (time_s is not None and time_s.two_modes) else "median"


def _doubts(by: str, seen: Sequence[Observation], timings: Sequence[LaunchTiming]) -> list[str]:
    found = [
        "Compared with launches of another time: what else ran on the machine then and now is "
        "in the figures. A gate against a commit (--against) measures both side by side."
    ]
    if by == "median" and (seen[0].steps.two_modes or has_two_modes(timings)):
        found.append(
            "Some steps take far longer now, and the stored launches hold their median step "
            "alone: what the long steps take is not in the comparison."
        )
    return found


def load_doubts(stored: Report, now: Sequence[SensorStatistics], usable: float) -> list[str]:
    """Where a busy machine may be what differs, then or now."""
    loads = {
        "when the stored launches were made": load_of([stored.sensors], stored.environment.cpus),
        "now": load_of(now, usable),
    }
    return [
        f"Other programs kept {load} busy {when}: what they took is in the times."
        for when, load in loads.items()
        if load
    ]


def _further_rows(
    stored: Report,
    settings: GateSettings,
    seen: Sequence[Observation],
    timings: list[LaunchTiming],
    time_row: GateMetric,
) -> list[GateMetric]:
    """What the stored report holds beside the time."""
    rows = [] if time_row.unit == "s/step" else [rate(time_row)]
    before = stored.baseline.peak_memory_bytes
    rows.append(memory([float(before)] if before else [], peaks(timings), settings.tolerances))
    if stored.steps is not None:
        observed = [(stored.steps, one.steps) for one in seen]
        rows.append(waiting(observed, settings.tolerances))
    return rows


def read_stored(path: Path) -> Report:
    """The stored report. Raises UsageError."""
    from torchdoctor.words.record_files import read_report

    report = read_report(path)
    if report.baseline.step_time_s is None:
        raise UsageError(f"{path} holds no step time: make it with torchdoctor run.")
    if any(not s > 0.0 for s in report.baseline.launches_s):
        raise UsageError(f"{path} holds a launch whose time is not above 0: make it again.")
    return report


def not_comparable(
    workload: Workload, now: Environment, steps: StepStatistics, stored: Report
) -> str | None:
    """What differs from the stored run, in words, or None.

    Args:
        workload: the program of now.
        now: the machine and its software.
        steps: of the program of now.
        stored: the report.
    """
    before = stored.environment
    if stored.workload.command[1:] != workload.command[1:]:
        return "it is of another command"
    if stored.steps and (stored.steps.samples_per_step is None) != (steps.samples_per_step is None):
        return "the size of a batch is known in one of them only"
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
