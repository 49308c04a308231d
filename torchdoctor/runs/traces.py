"""The story of `diagnose`: traces -> recording -> diagnosis -> report. Nothing is run."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from torchdoctor import __version__
from torchdoctor.advice import catalogue
from torchdoctor.advice.candidates import LEAST_SHARE
from torchdoctor.advice.wording import wording_for_trace
from torchdoctor.queries.bounds import bound_of, share_saved
from torchdoctor.queries.outcomes import replay_ceilings
from torchdoctor.queries.ranks import latest
from torchdoctor.queries.scaling import scaling
from torchdoctor.reports.remarks import FILES
from torchdoctor.reports.verdict import trace_doubts, with_sentences
from torchdoctor.runs.efficiency import of_trace
from torchdoctor.runs.notes import beware
from torchdoctor.runs.trace_verdict import diagnosed
from torchdoctor.runs.windows import mostly_start_up
from torchdoctor.schema import (
    Baseline,
    Bound,
    Diagnosis,
    Evidence,
    Gpu,
    RankTime,
    Recommendation,
    RecommendedFix,
    Recording,
    Remark,
    Report,
    StepTime,
    Touches,
    TraceStatistics,
    Workload,
    WorkloadRecord,
    as_remark,
)
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.evidence import fact
from torchdoctor.schema.traced import MATTERS
from torchdoctor.trace.ranks import STDIN, Alignment, RankTrace, Unaligned, align, read_ranks
from torchdoctor.trace.timeline import annotate

_FEW_STEPS = 3
_HOST_MATTERS = 0.3  # of a step: from here on what slows the host down changes the answer
_CLOCKS_TOGETHER_S = 1e-4
_HOST_CLOCKS_TOGETHER_S = 2e-3  # a thread of the host may be woken that late, always on one rank
_PARTIAL = frozenset({*FILES, "cut-before-device", "start-up-left-out"})  # less than was run
_UNKNOWN_SHARE = 0.01  # of a finding that has none


def trace_checkup(
    sources: Sequence[str], annotated: Path | None = None, on: str | None = None
) -> Report:
    """Diagnose trace files, folders of traces (one per rank), or "-" for the standard input.

    The trace that the figures are of is written to `annotated`, with tracks of its own; `on` is a
    cluster that reads the files. Raise UsageError if a source does not exist or is no trace, or
    `annotated` cannot be written.
    """
    created = datetime.now(timezone.utc)
    reader = None
    if on is not None:
        from torchdoctor.clusters.ray_traces import reader_on

        reader = reader_on(on)
    ranks, left_out = read_ranks(sources, annotated is not None, reader)
    # The only copy of a trace, which a folder named, must not be written over.
    copies = {os.path.realpath(rank.statistics.path) for rank in ranks}
    if annotated is not None and os.path.realpath(annotated) in copies:
        raise UsageError(f"{annotated} is one of the traces: name another file for the result.")
    rows, chosen, aligned = compared(ranks)
    trace = replace(chosen.statistics, rank=chosen.rank, of_traces=len(ranks))
    unlike_steps = trace.unusual or trace.device_missing or mostly_start_up(trace)
    if unlike_steps or not (trace.what_if and trace.what_if.explains):
        trace = replace(trace, what_if=None)  # a replay takes all of a step for usual, and shown
    command = ["torchdoctor", "diagnose", *map(_as_argument, sources)]
    cwd = str(Path.cwd())
    used = _gpus_used(ranks if rows else [chosen])
    recording = Recording(
        workload=Workload(command=command, cwd=cwd),
        environment=replace(chosen.environment, gpus=used),
        trace=trace,
        shares=trace.shares,
        ranks=rows,
    )
    diagnosis = diagnosed(recording, trace)
    step_time = _step_time(trace)
    offered, unworded = _offered(diagnosis, recording, trace)
    remarks = [*_left_out(left_out), *_remarks(ranks, chosen, aligned)]
    report = Report(
        kind="inference" if trace.trains is False else "training",
        torchdoctor_version=__version__,
        created=created.isoformat(timespec="seconds"),
        workload=WorkloadRecord(command=command, cwd=cwd),
        environment=recording.environment,
        baseline=Baseline(step_time_s=step_time, shares=trace.shares),
        efficiency=of_trace(trace),
        diagnosis=diagnosis,
        ceilings=replay_ceilings(trace.what_if),
        no_trials=fact("trace-not-run" if trace.trains is False else "training-trace-not-run"),
        recommendation=Recommendation(also_offered=offered),
        trace=trace,
        ranks=recording.ranks,
        scaling=scaling(recording),
        remarks=[*remarks, *map(as_remark, unworded)],
        reproduce=[shlex.join(command)],
    )
    return _finished(report, chosen, annotated)


def _as_argument(source: str) -> str:
    """Return a source as a word of a command: a leading dash would make it an option."""
    return f"./{source}" if source.startswith("-") and source != STDIN else source


def _gpus_used(ranks: Sequence[RankTrace]) -> list[Gpu]:
    """Return the GPUs of all ranks, of each rank once."""
    once = {rank.statistics.path if rank.rank is None else rank.rank: rank for rank in ranks}
    return [gpu for rank in once.values() for gpu in rank.environment.gpus]


def _finished(report: Report, chosen: RankTrace, annotated: Path | None) -> Report:
    """Return the report in words; the trace goes to `annotated` with tracks of its own."""
    worded_report = with_sentences(report)
    if annotated is not None:
        _annotate(chosen, annotated, worded_report)
    return worded_report


def _annotate(chosen: RankTrace, annotated: Path, report: Report) -> None:
    """Write the trace with tracks of its own, which hold the findings in words."""
    if chosen.timeline is not None:
        path = Path(chosen.statistics.path)
        findings = report.diagnosis.findings
        annotate(path, annotated, chosen.timeline, chosen.start_us, findings)


def _step_time(trace: TraceStatistics) -> StepTime | None:
    """Return the time of the steps; None: unknown, or the usual step has no length."""
    times_s = trace.step_times_s if trace.steps else []
    step_time = StepTime.of(times_s) if times_s else None
    return step_time if step_time is not None and step_time.median > 0 else None


def compared(ranks: Sequence[RankTrace]) -> tuple[list[RankTime], RankTrace, Alignment | Unaligned]:
    """Return a row for each rank of one job, the trace of the one that others wait for, clocks."""
    longest_s = max(rank.statistics.step_s or 0.0 for rank in ranks)
    aligned = align([rank.collectives for rank in ranks], longest_s)
    rows = _rank_times(ranks, aligned)
    if rows:
        return rows, ranks[rows.index(latest(rows))], aligned
    figures = [rank.statistics for rank in ranks]
    own_s = [(figure.step_s or 0.0) - (figure.communication_exposed_s or 0.0) for figure in figures]
    return rows, ranks[own_s.index(max(own_s))], aligned  # of several jobs: it works longest


def _of_one_job(ranks: Sequence[RankTrace]) -> bool:
    """Return True if the traces are of ranks of one job: they say so, or communicate."""
    return any(rank.rank is not None or len(rank.collectives.start) for rank in ranks)


def _rank_times(ranks: Sequence[RankTrace], aligned: Alignment | Unaligned) -> list[RankTime]:
    """Return a row for each rank; none for a single trace or traces of several runs."""
    if len(ranks) < 2 or not _of_one_job(ranks) or aligned is Unaligned.APART:
        return []
    clocks = aligned if isinstance(aligned, Alignment) else None
    return [
        RankTime(  # either all of them name their rank, or none
            rank=number if rank.rank is None else rank.rank,
            path=(figures := rank.statistics).path,
            step_s=(step_s := figures.step_s or 0.0),
            kernel_s=step_s * (figures.shares.gpu or 0.0),
            communication_s=figures.communication_s,
            communication_exposed_s=figures.communication_exposed_s,
            data_loader_s=step_s * (figures.shares.data_loader or 0.0),
            wait_s=clocks.wait_s[number] if clocks else None,
            last_share=clocks.last_share[number] if clocks else None,
            exchange_s=clocks.exchange_s if clocks else None,
        )
        for number, rank in enumerate(ranks)
    ]


def _offered(
    diagnosis: Diagnosis, recording: Recording, trace: TraceStatistics
) -> tuple[list[RecommendedFix], list[Evidence]]:
    """Return fixes for the findings, by what they could save, and which could not be worded."""
    checks = catalogue.checks()
    treated: dict[str, dict[str | None, float]] = {}  # fix -> branch -> shares of its findings
    for finding in diagnosis.findings:
        check = checks[finding.check]
        branch = "cpu" if check.asks("gpu") else check.branch  # a GPU idles for its host
        for ident in finding.fixes:
            shares = treated.setdefault(ident, {})
            shares[branch] = shares.get(branch, 0.0) + (finding.share_of_step or _UNKNOWN_SHARE)
    offered: list[RecommendedFix] = []
    doubts: list[Evidence] = []
    touched = {ident: catalogue.fixes()[ident].touches(recording) for ident in treated}
    bounds = {ident: bound_of(touched[ident], trace) for ident in treated}
    worth = {
        ident: _worth(shares, touched[ident], bounds[ident], diagnosis, trace)
        for ident, shares in treated.items()
    }
    for ident in sorted(worth, key=lambda ident: worth[ident], reverse=True):
        module = catalogue.fixes()[ident]
        parts = touched[ident]
        if parts is not None and share_saved(parts) < LEAST_SHARE:
            continue  # nothing, or hardly anything, that it works on was recorded
        words = wording_for_trace(module, recording)
        instruction = words.instruction
        changes = module.keeps_results == "changes training"
        if instruction and changes and "It changes" not in instruction:
            instruction = f"# It changes training.\n{instruction}"
        if instruction is not None and module.is_for(trace):
            offered.append(
                RecommendedFix(
                    fix=ident, instruction=instruction, standing="offered", bound=bounds[ident]
                )
            )
            doubts += words.failures
    # What the verdict opens with is to be changed first, whatever it may gain.
    opening = {fix for f in diagnosis.findings if checks[f.check].opens_verdict for fix in f.fixes}
    return sorted(offered, key=lambda fix: fix.fix not in opening), doubts


def _worth(
    shares: Mapping[str | None, float],
    touched: Touches,
    bound: Bound | None,
    diagnosis: Diagnosis,
    trace: TraceStatistics,
) -> tuple[float, ...]:
    """Return what orders fixes: if its bound is known, what it could save, what it treats.

    `shares` are those of the findings that it treats, by branch of the tree, added up. What treats
    a bottleneck that is not hidden, or mostly works on it, comes first. Without a bound the replay
    caps what a branch can give.
    """
    bottleneck_share = shares.get(diagnosis.bottleneck, 0.0)
    replay = trace.what_if if trace.what_if and trace.what_if.reproduced else None
    saved = 0.0
    for branch, share in shares.items():
        gain = replay.gain(branch) if replay is not None else None
        saved += share if gain is None else min(share, max(1.0 - 1.0 / gain, 0.0))
    gives = replay.gain(diagnosis.bottleneck) if replay is not None else None
    parts = list(touched or [])
    on_it = [part for part in parts if part.branch == diagnosis.bottleneck]
    mostly_on_it = share_saved(on_it) > share_saved(parts) / 2
    leads = (bottleneck_share > 0 or mostly_on_it) and (gives or MATTERS) >= MATTERS
    bound_matters = bound is not None and bound.speedup >= MATTERS
    saved = saved if bound is None else 1.0 - 1.0 / bound.speedup
    return (leads, bound_matters, saved, bottleneck_share, sum(shares.values()) - bottleneck_share)


def _left_out(reasons: Mapping[str, Evidence]) -> list[Remark]:
    """Return why files were left out, and which: all but the copies that we made."""
    remarks = [as_remark(reason) for reason in reasons.values()]
    files = [Path(path).name for path, reason in reasons.items() if reason.fact != "file-annotated"]
    return [*remarks, beware("files-left-out", files=files)] if files else remarks


def _too_little(ranks: Sequence[RankTrace], chosen: RankTrace) -> list[Remark]:
    """Return what is missing for a firm answer: steps, or ranks."""
    figures = chosen.statistics
    world = chosen.world_size
    doubts = [trace_doubt for trace_doubt in trace_doubts(figures) if trace_doubt.fact in _PARTIAL]
    remarks = [beware(doubt.fact, **doubt.values) for doubt in doubts]
    if not figures.has_device and figures.device_missing is None:
        remarks.append(beware("no-device"))
    if 0 < figures.steps < _FEW_STEPS:
        remarks.append(beware("too-few-steps", steps=figures.steps))
    shares = figures.shares
    host = (shares.cpu or 0.0) + (shares.runtime or 0.0) + (shares.other or 0.0)
    if figures.with_stack and host >= _HOST_MATTERS:
        remarks.append(beware("stacks-recorded"))
    if world and world > len(ranks):
        remarks.append(beware("ranks-missing", traces=len(ranks), ranks=world))
    return remarks


def _remarks(
    ranks: Sequence[RankTrace], chosen: RankTrace, aligned: Alignment | Unaligned
) -> list[Remark]:
    """Return what weakens the figures of the chosen trace, then what weakens the others."""
    doubts = [
        trace_doubt
        for trace_doubt in trace_doubts(chosen.statistics)
        if trace_doubt.fact not in _PARTIAL
    ]
    remarks = [*_too_little(ranks, chosen), *map(as_remark, doubts)]
    if len(ranks) > 1:
        remarks += map(as_remark, _whose(ranks, chosen, aligned))
    for rank in ranks:
        if rank is not chosen:
            name = Path(rank.statistics.path).name
            remarks += [as_remark(doubt, of=name) for doubt in trace_doubts(rank.statistics)]
    return remarks


def _whose(
    ranks: Sequence[RankTrace], chosen: RankTrace, aligned: Alignment | Unaligned
) -> list[Evidence]:
    """Return which trace the shares are of, and how the ranks' times compare."""
    name = Path(chosen.statistics.path).name
    if not _of_one_job(ranks):
        return [fact("separate-recordings", traces=len(ranks), file=name)]
    if aligned is Unaligned.APART:
        return [fact("collectives-apart", file=name)]
    rank = name if chosen.rank is None else chosen.rank
    if aligned is Unaligned.UNMATCHED:
        return [fact("collectives-unmatched", rank=rank)]
    doubts = [fact("shares-of-rank", rank=rank)]
    numbers = [trace.rank for trace in ranks if trace.rank is not None]
    repeated = sorted({number for number in numbers if numbers.count(number) > 1})
    if repeated:
        doubts.append(fact("ranks-repeated", ranks=repeated))
    return doubts + _clock_doubts(ranks, aligned)


def _clock_doubts(ranks: Sequence[RankTrace], aligned: Alignment | Unaligned) -> list[Evidence]:
    """Return how far the ranks' clocks are apart, where that matters; or that it is not known."""
    if isinstance(aligned, Alignment):
        apart_s = max(aligned.offset_s) - min(aligned.offset_s)
        if apart_s < (_CLOCKS_TOGETHER_S if aligned.on_device else _HOST_CLOCKS_TOGETHER_S):
            return []
        return [
            fact(
                "clocks-aligned",
                apart_s=apart_s,
                collectives=aligned.collectives,
                scatter_us=aligned.scatter_s * 1e6,
            )
        ]
    if not any(trace.statistics.communication_s for trace in ranks):
        return []
    return [fact("clocks-not-aligned")]
