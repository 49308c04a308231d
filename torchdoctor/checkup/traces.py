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
from torchdoctor.checkup.efficiency import of_trace
from torchdoctor.checkup.trace_verdict import diagnosed
from torchdoctor.checkup.windows import mostly_start_up
from torchdoctor.facts.bounds import bound_of, share_saved
from torchdoctor.facts.outcomes import replay_ceilings
from torchdoctor.facts.ranks import latest
from torchdoctor.facts.scaling import scaling
from torchdoctor.reports.verdict import trace_doubts, with_sentences
from torchdoctor.trace.ranks import STDIN, Alignment, RankTrace, Unaligned, align, read_ranks
from torchdoctor.trace.timeline import STARTS_UP, annotate
from torchdoctor.words import (
    Baseline,
    Bound,
    Diagnosis,
    Gpu,
    RankTime,
    Recommendation,
    RecommendedFix,
    Recording,
    Report,
    StepTime,
    Touches,
    TraceStatistics,
    Workload,
    WorkloadRecord,
)
from torchdoctor.words.errors import UsageError
from torchdoctor.words.figures import counted, seconds
from torchdoctor.words.traced import MATTERS

NOT_MEASURED = "No fix was tried, because a trace cannot be run."
MEASURE = " To measure fixes: torchdoctor run train.py"
_FEW_STEPS = 3
_HOST_MATTERS = 0.3  # of a step: from here on what slows the host down changes the answer
_CLOCKS_TOGETHER_S = 1e-4
_HOST_CLOCKS_TOGETHER_S = 2e-3  # a thread of the host may be woken that late, always on one rank
_UNKNOWN_SHARE = 0.01  # of a finding that has none


def trace_checkup(
    sources: Sequence[str], annotated: Path | None = None, on: str | None = None
) -> Report:
    """Diagnose trace files, folders of traces (one per rank), or "-" for the standard input.

    The trace that the figures are of is written to `annotated`, with tracks of its own; `on` is a
    cluster that reads the files. Raise UsageError if a source does not exist or is no trace, or
    `annotated` cannot be written.
    """
    created, reader = datetime.now(timezone.utc), None
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
    # A leading dash would make a source an option.
    named = [f"./{x}" if x.startswith("-") and x != STDIN else x for x in sources]
    command, cwd = ["torchdoctor", "diagnose", *named], str(Path.cwd())
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
        no_trials_reason=NOT_MEASURED + (MEASURE if trace.trains is not False else ""),
        recommendation=Recommendation(also_offered=offered),
        trace=trace,
        ranks=recording.ranks,
        scaling=scaling(recording),
        doubts=[*left_out.values(), *_doubts(ranks, chosen, aligned), *unworded],
        beware=[*_left_out(left_out), *_too_little(ranks, chosen)],
        reproduce=[shlex.join(command)],
    )
    return _finished(report, chosen, annotated)


def _gpus_used(ranks: Sequence[RankTrace]) -> list[Gpu]:
    """Return the GPUs of all ranks, of each rank once."""
    once = {rank.statistics.path if rank.rank is None else rank.rank: rank for rank in ranks}
    return [gpu for rank in once.values() for gpu in rank.environment.gpus]


def _finished(report: Report, chosen: RankTrace, annotated: Path | None) -> Report:
    """Return the report in words; the trace goes to `annotated` with tracks of its own."""
    told = with_sentences(report)
    if annotated is not None:
        _annotate(chosen, annotated, told)
    return told


def _annotate(chosen: RankTrace, annotated: Path, report: Report) -> None:
    """Write the trace with tracks of its own, which hold the findings in words."""
    if chosen.timeline is not None:
        path, findings = Path(chosen.statistics.path), report.diagnosis.findings
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
    own_s = [(x.step_s or 0.0) - (x.communication_exposed_s or 0.0) for x in figures]
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
) -> tuple[list[RecommendedFix], list[str]]:
    """Return fixes for the findings, by what they could save, and doubts on their words."""
    checks = catalogue.checks()
    treated: dict[str, dict[str | None, float]] = {}  # fix -> branch -> shares of its findings
    for finding in diagnosis.findings:
        check = checks[finding.check]
        branch = "cpu" if check.asks("gpu") else check.branch  # a GPU idles for its host
        for ident in finding.fixes:
            shares = treated.setdefault(ident, {})
            shares[branch] = shares.get(branch, 0.0) + (finding.share_of_step or _UNKNOWN_SHARE)
    offered: list[RecommendedFix] = []
    doubts: list[str] = []
    touched = {ident: catalogue.fixes()[ident].touches(recording) for ident in treated}
    bounds = {ident: bound_of(touched[ident], trace) for ident in treated}
    worth = {
        ident: _worth(shares, touched[ident], bounds[ident], diagnosis, trace)
        for ident, shares in treated.items()
    }
    for ident in sorted(worth, key=lambda ident: worth[ident], reverse=True):
        module, parts = catalogue.fixes()[ident], touched[ident]
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
    opening = {x for f in diagnosis.findings if checks[f.check].opens_verdict for x in f.fixes}
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
    own = shares.get(diagnosis.bottleneck, 0.0)
    replay = trace.what_if if trace.what_if and trace.what_if.reproduced else None
    saved = 0.0
    for branch, share in shares.items():
        gain = replay.gain(branch) if replay is not None else None
        saved += share if gain is None else min(share, max(1.0 - 1.0 / gain, 0.0))
    gives = replay.gain(diagnosis.bottleneck) if replay is not None else None
    parts = list(touched or [])
    on_it = [part for part in parts if part.branch == diagnosis.bottleneck]
    mostly_on_it = share_saved(on_it) > share_saved(parts) / 2
    leads = (own > 0 or mostly_on_it) and (gives or MATTERS) >= MATTERS
    known = bound is not None and bound.speedup >= MATTERS
    saved = saved if bound is None else 1.0 - 1.0 / bound.speedup
    return (leads, known, saved, own, sum(shares.values()) - own)


def _left_out(doubts: Mapping[str, str]) -> list[str]:
    """Return a sentence on the files that were left out, but for copies that we made."""
    files = [Path(path).name for path, why in doubts.items() if "is an annotated copy" not in why]
    told = "Files that are cut off, cannot be read or name no rank were left out: "
    return [f"{told}{', '.join(files)}."] if files else []


def _too_little(ranks: Sequence[RankTrace], chosen: RankTrace) -> list[str]:
    """Return what is missing for a firm answer: steps, or ranks."""
    steps, world = chosen.statistics.steps, chosen.world_size
    doubts = trace_doubts(chosen.statistics)
    sentences = [x for x in doubts if STARTS_UP in x or "cut off" in x]
    if not chosen.statistics.has_device and chosen.statistics.device_missing is None:
        sentences.append("The trace holds no event of a GPU.")
    if 0 < steps < _FEW_STEPS:
        few = counted(steps, "step")
        sentences.append(f"The trace holds {few}: too few to tell usual from unusual steps.")
    shares = chosen.statistics.shares
    host = (shares.cpu or 0.0) + (shares.runtime or 0.0) + (shares.other or 0.0)
    if chosen.statistics.with_stack and host >= _HOST_MATTERS:
        sentences.append("Python stacks were recorded (with_stack), which slows the host down.")
    if world and world > len(ranks):
        sentences.append(
            f"Traces of {len(ranks)} of {world} ranks are here, so the others may be slower: name "
            "a folder with the traces of all ranks."
        )
    return sentences


def _doubts(
    ranks: Sequence[RankTrace], chosen: RankTrace, aligned: Alignment | Unaligned
) -> list[str]:
    doubts = [*trace_doubts(chosen.statistics), *_too_little(ranks, chosen)]
    if len(ranks) > 1:
        doubts += _whose(ranks, chosen, aligned)
    for rank in ranks:
        if rank is not chosen:
            label = Path(rank.statistics.path).name
            doubts += [f"{label}: {doubt}" for doubt in trace_doubts(rank.statistics)]
    return list(dict.fromkeys(doubts))


def _whose(
    ranks: Sequence[RankTrace], chosen: RankTrace, aligned: Alignment | Unaligned
) -> list[str]:
    """Return which trace the shares are of, and how the ranks' times compare."""
    name = Path(chosen.statistics.path).name
    if not _of_one_job(ranks):
        return [
            f"The {len(ranks)} traces name no rank and hold no communication: they count as "
            f"separate recordings, and the figures are of {name}, which has the longest steps."
        ]
    if aligned is Unaligned.APART:
        return [
            "The collectives of the traces could not be matched: those that look alike do not end "
            "at the same time, nor do steps begin together, so they may be of several runs. "
            f"Ranks are not compared, and the figures are of {name}, whose steps without "
            "collectives are the longest."
        ]
    rank = name if chosen.rank is None else chosen.rank
    doubts = [f"The shares are of rank {rank}, which the others wait for."]
    if aligned is Unaligned.UNMATCHED:
        return [
            f"The shares are of rank {rank}, whose steps without collectives are the longest. The "
            "steps of all ranks begin together, but their collectives could not be matched one by "
            "one (events may be missing): which rank waits for which is not known."
        ]
    numbers = [trace.rank for trace in ranks if trace.rank is not None]
    repeated = sorted({number for number in numbers if numbers.count(number) > 1})
    if repeated:
        doubts.append(
            f"Several traces are of rank {', '.join(map(str, repeated))} (windows of one run, or "
            "several runs): ranks are compared as if all of them ran together."
        )
    return doubts + _clock_doubts(ranks, aligned)


def _clock_doubts(ranks: Sequence[RankTrace], aligned: Alignment | Unaligned) -> list[str]:
    if isinstance(aligned, Alignment):
        apart_s = max(aligned.offset_s) - min(aligned.offset_s)
        if apart_s < (_CLOCKS_TOGETHER_S if aligned.on_device else _HOST_CLOCKS_TOGETHER_S):
            return []
        return [
            f"The ranks' clocks differ by up to {seconds(apart_s)}. They were aligned on "
            f"{aligned.collectives} collectives that all ranks ran, whose ends then agree within "
            f"{aligned.scatter_s * 1e6:.0f} us."
        ]
    if not any(trace.statistics.communication_s for trace in ranks):
        return []
    return [
        "The ranks' clocks could not be aligned, which needs marked steps with collectives that "
        "all ranks ran alike. Waits for other ranks cannot be separated from the exchange itself, "
        "and whether the traces are of one run is not known."
    ]
