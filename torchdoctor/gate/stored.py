"""A gate against a stored report: fresh launches of now against its launches, where comparable."""

import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torchdoctor.bench.engine import Engine
from torchdoctor.bench.measurement import Pace, ProgramLaunches
from torchdoctor.bench.pair_times import is_per_step, seconds_per_sample, usable
from torchdoctor.gate.answer import Basis, answer
from torchdoctor.gate.decision import against_stored, blind_spot, state
from torchdoctor.gate.figures import memory, peaks, time_rows, waiting
from torchdoctor.gate.session import GateSession
from torchdoctor.gate.settings import GateSettings
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import choose_window
from torchdoctor.queries.hardware import load_of
from torchdoctor.reports.remarks import sentence
from torchdoctor.schema import (
    Environment,
    Evidence,
    LaunchTiming,
    ProgressEvent,
    Remark,
    Report,
    SensorStatistics,
    StepStatistics,
    Workload,
    WorkloadRecord,
    as_remark,
    fact,
)
from torchdoctor.schema.errors import Inconclusive, UsageError
from torchdoctor.schema.figures import seconds
from torchdoctor.schema.gate import GateMetric, GateReport
from torchdoctor.schema.record_files import read_report
from torchdoctor.trials.compare import has_two_modes

_SEES_NOTHING = 10.0  # times as long, from which on alone a comparison would fail
FEWEST_STORED = 3
LAUNCHES = 5


def gate_against_report(
    workload: Workload,
    stored: Report,
    name: str,
    settings: GateSettings,
    progress: Callable[[ProgressEvent], None],
) -> GateReport:
    """Launch the program a few times and compare with a stored report; or raise Inconclusive."""
    launches = stored.baseline.launches_s
    if len(launches) < FEWEST_STORED:
        raise Inconclusive(
            f"{name} holds {len(launches)} launches of the untouched program, and "
            f"{FEWEST_STORED} are needed: make it with torchdoctor run, fixes included."
        )
    then = shlex.join(stored.workload.command[1:])
    now = shlex.join(workload.typed[1:])
    if then != now:
        raise Inconclusive(f"{name} is not comparable: another command ({then} then, {now} now).")
    with GateSession(workload, settings, progress) as session:
        observed = [session.observe(UNTOUCHED, "the program")]
        machine = session.environment(observed[0])
        if reason := not_comparable(machine, observed[0].steps, stored):
            raise Inconclusive(f"{name} is not comparable: {reason}.")
        if settings.tolerances.get("data_loader_share") is not None:
            # The first launch reads from a cold disk.
            observed.append(session.observe(UNTOUCHED, "the program again: the wait for data"))
        forked = stored.baseline.measured == "side by side"
        with session.measuring(machine):
            timings = launched(session, observed[0], forked=forked)
        report = stored_report(stored, name, settings, observed, timings)
        sensors = [observation.sensors for observation in observed]
        doubts = [
            *observed[0].doubts,
            *session.launch_doubts(),
            *load_doubts(stored, sensors, machine.cpus),
        ]
        remarks = [*report.remarks, *map(as_remark, doubts)]
        return session.completed(replace(report, environment=machine, remarks=remarks), stored)


def launched(
    session: GateSession, observed: Observation, forked: bool = False
) -> list[LaunchTiming]:
    """Time five launches, or as many as there is time for; Inconclusive: three cannot be timed.

    `forked`: as a run's pairs are; such a process holds only the pages that it touched itself, and
    its peak memory is not that of a fresh interpreter.
    """
    settings = session.settings
    spec = replace(UNTOUCHED, forked=forked)
    window = choose_window(observed.steps, settings.budget_s / 2, observed.processes[0].loaders)
    window = window.overruled(settings.steps, settings.warmup)
    launches = ProgramLaunches(recorder=session.recorder, pace=Pace.of(observed), window=window)
    engine = Engine(launches, random.Random(settings.seed))
    timings = []
    longest_s = 0.0
    measured = 0
    for number in range(LAUNCHES):
        begun_s = session.spent_s()
        if measured >= FEWEST_STORED and longest_s > session.left_s():
            break
        session.say("measure", f"Launch {number + 1} of {LAUNCHES} times the program")
        timings.append(engine.launch(spec))
        longest_s = max(longest_s, session.spent_s() - begun_s)
        measured += usable(timings[-1])
        failed = len(timings) - measured
        if failed > LAUNCHES - FEWEST_STORED:
            last = next(timing for timing in reversed(timings) if not usable(timing))
            why = sentence(last.why) if last.why is not None else last.ended
            raise Inconclusive(
                f"{failed} of {len(timings)} launches could not be measured, and "
                f"{FEWEST_STORED} of {LAUNCHES} are needed: {why}"
            )
    return timings


def stored_report(
    stored: Report,
    name: str,
    settings: GateSettings,
    observed: Sequence[Observation],
    timings: list[LaunchTiming],
) -> GateReport:
    """Return verdict, sentence and rows; the caller adds what was run, and where.

    Raise Inconclusive if times are not of the same, or if those stored differ too much.
    """
    before = stored.baseline.launches_s
    by = stored.baseline.launches_by or "median"
    per_step = is_per_step(timings)
    boundary = observed[0].steps.boundary
    then = stored.baseline.launches_per
    if then is not None and (then == "step") != per_step:
        raise Inconclusive(
            f"{name} is not comparable: its times are per {then}, those of now are not, because "
            "the size of a batch is known in one of them only."
        )
    now = [sample_s for timing in timings if (sample_s := seconds_per_sample(timing, by, per_step))]
    tolerance = settings.tolerances["step_time"]
    compared = against_stored(before, now, tolerance)
    word = state(compared.verdict, compared.ratio, tolerance)
    rows = [
        *time_rows(before, now, per_step, compared.ratio, tolerance, word),
        _memory(stored, timings, settings),
    ]
    if stored.steps is not None:
        rows.append(
            waiting(
                [(stored.steps, observation.steps) for observation in observed], settings.tolerances
            )
        )
    worse = any(row.verdict == "worse" for row in rows)
    per = boundary.unit if per_step else "sample"
    if not worse and compared.chance > _SEES_NOTHING:
        raise Inconclusive(
            f"The {len(before)} stored launches lie so far apart ({seconds(min(before))} to "
            f"{seconds(max(before))} a {per}) that ten times the time would not be seen: store a "
            "new report from a quiet machine, or compare with a commit (--against)."
        )
    verdict = "slower" if worse else "not slower"
    fails_from = fact("stored-launches-fail-from", launches=len(before), limit=compared.limit)
    return GateReport(
        workload=WorkloadRecord(command=[]),
        environment=Environment(),
        reference=name,
        kind=boundary.program,
        unit=boundary.unit,
        verdict=verdict,
        answer=answer(rows, verdict, name, Basis(decides=fails_from, typical=by == "median")),
        metrics=rows,
        blind_spot=blind_spot(compared.ratio),
        measured="stored",
        per="step" if per_step else "sample",
        remarks=_remarks(by, observed[0], timings),
    )


def _memory(stored: Report, timings: list[LaunchTiming], settings: GateSettings) -> GateMetric:
    peak = stored.baseline.peak_memory_bytes
    before = [float(peak)] if peak else []
    return memory(before, peaks(timings), settings.tolerances, settings.told_memory)


def _remarks(by: str, observed: Observation, timings: list[LaunchTiming]) -> list[Remark]:
    """Return what weakens a comparison with stored launches, above all with their medians."""
    doubts = [fact("another-time")]
    if by == "median" and (observed.steps.two_modes or has_two_modes(timings)):
        doubts.append(fact("long-steps-not-stored"))
    return list(map(as_remark, doubts))


def load_doubts(stored: Report, now: Sequence[SensorStatistics], usable: float) -> list[Evidence]:
    """Return where a busy machine may be what differs, then or now."""
    loads = {
        "busy-then": load_of([stored.sensors], stored.environment.cpus),
        "busy-now": load_of(now, usable),
    }
    return [fact(ident, load=load) for ident, load in loads.items() if load]


def read_stored(path: Path) -> Report:
    """Return the stored report. Raises UsageError."""
    report = read_report(path)
    if report.baseline.step_time_s is None:
        raise UsageError(f"{path} holds no step time: make it with torchdoctor run.")
    if any(not s > 0.0 for s in report.baseline.launches_s):
        raise UsageError(f"{path} holds a launch whose time is not above 0: make it again.")
    return report


def not_comparable(now: Environment, steps: StepStatistics, stored: Report) -> str | None:
    """Return what differs between the stored run and the program and machine of now, or None."""
    before = stored.environment
    if stored.steps and (stored.steps.samples_per_step is None) != (steps.samples_per_step is None):
        return "the size of a batch is known in one of them only"
    for name, old, new in (
        ("processor", before.cpu, now.cpu),
        ("number of usable CPUs", before.usable_cpus, now.usable_cpus),
        ("GPU", [gpu.name for gpu in before.gpus], [gpu.name for gpu in now.gpus]),
        ("driver", before.driver, now.driver),
        ("torch", before.torch, now.torch),
        ("Python", before.python, now.python),
    ):
        if old != new:
            return f"another {name} ({old} then, {new} now)"
    return None
