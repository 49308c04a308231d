"""Everything that a run found -> `Report`. Pure but for the script's checksum."""

import contextlib
import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchdoctor import __version__
from torchdoctor.queries.bounds import bound_of
from torchdoctor.queries.observed_settings import settings_of
from torchdoctor.queries.outcomes import replay_ceilings, with_measured
from torchdoctor.queries.scaling import scaling
from torchdoctor.reports.verdict import with_sentences
from torchdoctor.runs import busy_machine
from torchdoctor.runs.efficiency import efficiency
from torchdoctor.runs.notes import fix_notes, report_notes
from torchdoctor.runs.offered_fixes import advice, as_code, offered_fixes
from torchdoctor.runs.run_settings import RunSettings
from torchdoctor.schema import (
    Baseline,
    Diagnosis,
    Ending,
    Evidence,
    OtherLoad,
    Overhead,
    Recommendation,
    RecommendedFix,
    Recording,
    Refused,
    Report,
    StepTime,
    TrainingTrial,
    Trial,
    TriedCeiling,
    Verdict,
    Workload,
    WorkloadRecord,
    as_remark,
)
from torchdoctor.schema.figures import counted
from torchdoctor.schema.specs import FixSpec
from torchdoctor.trials.outcome import TrialResults

NOTHING = Diagnosis(bottleneck="none", verdict=Verdict(kind="not_measured"))


@dataclass(kw_only=True)
class RunResults:
    """All that a run brings together: what a report is made of."""

    recording: Recording  # of the observing launches; its doubts go into the report
    diagnosis: Diagnosis = NOTHING
    trials: TrialResults | None = None  # None: there were none
    settings: RunSettings
    refused: Sequence[Refused] = ()  # fixes that were not tried, with their reasons
    created: str = ""  # ISO 8601
    elapsed_s: float = 0.0
    no_trials: Evidence | None = None  # why no fix was tried
    interrupted: bool = False  # by Ctrl-C
    training: Sequence[TrainingTrial] = ()  # what short launches showed of advice on training
    ending: Ending | None = None  # of the search; None: there was none
    other_load: OtherLoad | None = None  # while fixes were tried
    warnings: Sequence[Evidence] = ()  # doubts that the first screen shows
    profiled_within: bool = False  # the observing launch, whose last steps were profiled


def known_so_far(recording: Recording, diagnosis: Diagnosis) -> Report:
    """Return what a run knows before any fix was tried, in words."""
    report = Report(
        kind=_kind(recording),
        workload=workload_record(recording.workload),
        environment=recording.environment,
        diagnosis=diagnosis,
        steps=recording.steps,
        trace=recording.trace,
    )
    return with_sentences(report)


def _kind(recording: Recording) -> str:
    return "inference" if recording.infers else "training"


def assemble(run: RunResults) -> Report:
    """Return the report of a run."""
    recording = run.recording
    trials = run.trials
    fixes = run.settings.wanted()
    rows = [*(trials.trials if trials else []), *_refused_rows(run, fixes)]
    rows = busy_machine.judged(_noted(rows, recording, fixes), fixes)
    chosen = trials.recommendation.fixes if trials is not None else []
    offered = offered_fixes(run.diagnosis, rows, chosen, recording, fixes)
    if run.settings.allow_training_changes:
        offered += advice(rows, recording, fixes)
    ceilings = trials.ceilings if trials else []
    offered = [_bounded(fix, recording, fixes, ceilings) for fix in offered]
    shown = [*chosen, *offered]
    idents = [fix.fix for fix in shown]
    idents += [fix for row in rows if row.verdict != "refused" for fix in row.fixes]
    remarks = [as_remark(warning, "beware") for warning in run.warnings]
    remarks += fix_notes(idents, shown, recording, fixes)
    remarks += report_notes(recording, trials, run.other_load)
    coded = [as_code(fix, recording, fixes) for fix in chosen]
    recommendation = _recommendation(trials, coded) if trials else Recommendation()
    baseline = _baseline(recording, trials)
    report = Report(
        kind=_kind(recording),
        torchdoctor_version=__version__,
        created=run.created,
        elapsed_s=run.elapsed_s,
        workload=workload_record(recording.workload),
        environment=recording.environment,
        settings=settings_of(recording),
        baseline=baseline,
        efficiency=efficiency(recording, baseline, recommendation, run.settings),
        diagnosis=run.diagnosis,
        ceilings=with_measured(
            replay_ceilings(recording.trace.what_if if recording.trace else None), ceilings
        ),
        ceiling_trials=ceilings,
        trials=rows,
        training_trials=list(run.training),
        no_trials=run.no_trials,
        ending=busy_machine.ending_of(run.ending, rows, run.other_load, fixes),
        noise_floor=trials.noise_floor if trials else None,
        overhead=_overhead(recording, run.profiled_within),
        steps=recording.steps,
        trace=recording.trace,
        ranks=recording.ranks,
        scaling=scaling(recording),
        sensors=recording.sensors,
        other_load=run.other_load,
        network=recording.network,
        remarks=remarks,
        failure=recording.failure,
        interrupted=run.interrupted,
        run_folder=recording.folder,
        memory_snapshot=recording.main.memory_snapshot,
        reproduce=_reproduce(run),
        recommendation=replace(recommendation, also_offered=offered),
    )
    return with_sentences(report)


def _refused_rows(run: RunResults, fixes: Mapping[str, FixSpec]) -> Iterator[Trial]:
    for refused in run.refused:
        risk = max((fixes[fix].risk for fix in refused.fixes if fix in fixes), default=0)
        yield Trial(fixes=refused.fixes, verdict="refused", why=[refused.why], risk=risk)


def _bounded(
    fix: RecommendedFix,
    recording: Recording,
    fixes: Mapping[str, FixSpec],
    tried: Sequence[TriedCeiling],
) -> RecommendedFix:
    """Return a fix that was not measured with the most that it can gain."""
    spec = fixes.get(fix.fix)
    if spec is None or fix.standing not in ("offered", "untried"):
        return fix
    return replace(fix, bound=bound_of(spec.touches(recording), recording.trace, tried))


def _reproduce(run: RunResults) -> list[str]:
    """Return the commands that repeat the run and show its report again."""
    workload = run.recording.workload
    options = run.settings.options()
    again = f"torchdoctor run {shlex.join([*options, '--', *workload.typed])}"
    if workload.is_cell:  # no command line has it
        again = f"%%torchdoctor {shlex.join(options)}"
    path = f"{run.recording.folder}/report.json"
    return [again, f"torchdoctor report {shlex.quote(path)}"]


def _recommendation(trials: TrialResults, coded: list[RecommendedFix]) -> Recommendation:
    """Return the recommended set as code, and its patch."""
    patch = trials.source_patch
    return replace(
        trials.recommendation,
        fixes=coded,
        patch=patch.diff if patch else None,
        patch_folder=patch.folder if patch else None,
        patch_fixes=patch.fixes if patch else [],
    )


def workload_record(workload: Workload) -> WorkloadRecord:
    """Return what was run, with the script's checksum so that a later report can be compared."""
    digest = None
    if workload.script is not None:
        with contextlib.suppress(OSError):
            digest = hashlib.sha256(Path(workload.script).read_bytes()).hexdigest()
    return WorkloadRecord(
        command=workload.typed,
        cwd=workload.cwd,
        python=workload.python,
        python_from=workload.python_from,
        script_sha256=digest,
    )


def _baseline(recording: Recording, trials: TrialResults | None) -> Baseline:
    """Return the untouched program's figures: of the trials' own launches, if any."""
    steps = recording.steps
    if steps is None:
        return Baseline(shares=recording.shares)
    time = StepTime(
        median=steps.median_s,
        p10=steps.p10_s,
        p90=steps.p90_s,
        steps=steps.steps,
        mean=steps.mean_s,
    )
    samples = steps.samples_per_step
    baseline = Baseline(
        shares=recording.shares,
        peak_memory_bytes=recording.main.peak_gpu_memory_bytes or recording.main.peak_memory_bytes,
        measured=trials.measured if trials is not None else None,
    )
    if trials is not None and trials.baselines:
        time = StepTime.of(s for launch in trials.baselines for s in launch.step_s)
        counted = [launch for launch in trials.baselines if launch.samples and launch.step_s]
        if counted:
            total = sum(launch.samples or 0.0 for launch in counted)
            samples = total / sum(len(launch.step_s) for launch in counted)
        peaks = [
            baseline.peak_memory_bytes
            for baseline in trials.baselines
            if baseline.peak_memory_bytes is not None
        ]
        baseline = replace(
            baseline,
            peak_memory_bytes=max(peaks, default=baseline.peak_memory_bytes),
            launches_s=list(trials.launches_s),
            launches_by=trials.decided_by,
            launches_per="step" if trials.per_step else "sample",
        )
    samples_per_s = samples / time.deciding if samples and time.deciding > 0 else None
    return replace(baseline, step_time_s=time, samples_per_s=samples_per_s)


def _noted(
    rows: Sequence[Trial], recording: Recording, fixes: Mapping[str, FixSpec]
) -> list[Trial]:
    """Return the rows; the first one of a fix carries the fix's note on this program."""
    noted: dict[str, Evidence | None] = {}
    changed = []
    for row in rows:
        note = None
        fix = row.fixes.only
        if fix is not None and fix in fixes and fix not in noted:
            note = noted[fix] = fixes[fix].note(recording)
        changed.append(row if note is None else replace(row, why=[*row.why, note]))
    return changed


def _overhead(recording: Recording, profiled_within: bool) -> Overhead:
    cost = recording.main.probe_cost_us_per_step
    steps = recording.steps
    trace = recording.trace
    where = "followed the observed steps" if profiled_within else "ran in its own launch"
    window = trace and (
        f"The profiler window of {counted(trace.steps, 'step')} {where}, "
        "so its cost is in no timing."
    )
    return Overhead(
        probe_us_per_step=cost,
        probe_share=cost / 1e6 / steps.mean_s if cost and steps and steps.mean_s > 0 else None,
        profiler_window=window or None,
    )
