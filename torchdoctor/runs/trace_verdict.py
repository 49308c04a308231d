"""What a trace does not show, no verdict may rest on: the diagnosis of a trace, limited to that."""

import re
from collections.abc import Sequence
from dataclasses import astuple, replace

from torchdoctor.advice import catalogue
from torchdoctor.advice.diagnosis import detail_of, diagnose
from torchdoctor.queries.ranks import WAITS_FOR_RANKS
from torchdoctor.runs.windows import of_window
from torchdoctor.schema import (
    Diagnosis,
    Evidence,
    LatestRank,
    Quote,
    RankTime,
    Recording,
    ReplayedGain,
    RestOfRecording,
    TraceStatistics,
    Verdict,
    VerdictPart,
    fact,
)
from torchdoctor.schema.traced import MATTERS
from torchdoctor.trace.timeline import usual_part

_MUCH = 0.1  # of a step
_TREE = ("data_loader", "memcpy", "communication", "gpu", "cpu")  # branches that are replayed
_MORE, _FAR_MORE = 1.25, 4.0  # times what the bottleneck itself saves
_MOSTLY = 0.5  # of the exposed time in collectives
_RESTS_ON_DEVICE = ("gpu", "cpu", "communication", "other")
_LAUNCHES = re.compile(r"Launch|Memcpy|Enqueue")


def diagnosed(recording: Recording, trace: TraceStatistics) -> Diagnosis:
    """Return the diagnosis as far as the trace goes, without what is no part of a usual step."""
    usual = usual_part(recording, trace)
    diagnosis = as_far_as_recorded(diagnose(usual, catalogue.checks(), catalogue.fixes()), trace)
    if trace.unusual is not None:
        rest_s = (trace.step_s or 0.0) - trace.unusual_s
        diagnosis = of_the_rest(diagnosis, RestOfRecording(why=trace.unusual, seconds=rest_s))
    else:
        diagnosis = with_replay(with_waits(diagnosis, trace, recording.ranks), trace)
    return of_window(diagnosis, trace)


def as_far_as_recorded(diagnosis: Diagnosis, trace: TraceStatistics) -> Diagnosis:
    """Return the diagnosis without what the trace cannot know: times, or a device's work."""
    if all(share is None for share in astuple(trace.shares)):
        return replace(diagnosis, verdict=Verdict(kind="no_time"))
    if diagnosis.bottleneck == "data_loader":
        return diagnosis
    if trace.device_missing is not None:
        return _without_device(diagnosis, trace.device_missing)
    launches = any(_LAUNCHES.search(call.name) for call in trace.runtime_calls)
    if not trace.has_device and launches and diagnosis.bottleneck in ("cpu", "other", "none"):
        return _without_device(diagnosis, fact("device-unseen"))
    return diagnosis


def of_the_rest(diagnosis: Diagnosis, rest: RestOfRecording) -> Diagnosis:
    """Return the diagnosis of the usual part, which names no bottleneck of a step."""
    return replace(
        diagnosis,
        bottleneck="none",
        verdict=replace(diagnosis.verdict, rest=rest),
        path=[replace(question, answer="not measured", value=None) for question in diagnosis.path],
        findings=[replace(f, share_of_step=None) for f in diagnosis.findings],
    )


def with_waits(
    diagnosis: Diagnosis, trace: TraceStatistics, ranks: Sequence[RankTime]
) -> Diagnosis:
    """Return the diagnosis; it says so where collectives mostly wait for later ranks."""
    row = next((rank for rank in ranks if rank.path == trace.path), None)
    if row is None or row.wait_s is None or not trace.step_s:
        return diagnosis
    exposed_s = trace.communication_exposed_s or 0.0
    waited_s = min(row.wait_s, exposed_s)
    if not exposed_s or waited_s < _MOSTLY * exposed_s:
        return _of_the_latest(diagnosis, row, ranks)
    checks = catalogue.checks()
    shares = [f.share_of_step for f in diagnosis.findings if checks[f.check].asks("communication")]
    # Profiled steps may be longer than those that all other shares are of.
    share = next(filter(None, shares), exposed_s / trace.step_s)
    waits = share * waited_s / exposed_s
    exchange = share - waits
    waiting = fact(WAITS_FOR_RANKS, share=waits, rank=row.rank, exchange=exchange)
    findings = [
        replace(f, evidence=[*f.evidence, waiting]) if checks[f.check].asks("communication") else f
        for f in diagnosis.findings
    ]
    diagnosis = replace(diagnosis, findings=findings)
    if diagnosis.bottleneck != "communication":
        return _of_the_latest(diagnosis, row, ranks)
    parts = [
        VerdictPart(name="waits", share=waits),
        VerdictPart(name="exchange", share=exchange),
    ]
    before = diagnosis.verdict
    verdict = Verdict(
        kind="ranks_wait", parts=parts, rank=row.rank, place=before.place, opening=before.opening
    )
    return replace(diagnosis, verdict=verdict)


def _of_the_latest(diagnosis: Diagnosis, row: RankTime, ranks: Sequence[RankTime]) -> Diagnosis:
    """Return the diagnosis of the rank that comes last, with how long another waits for it."""
    most = max(ranks, key=lambda rank: (rank.wait_s or 0.0) / rank.step_s if rank.step_s else 0.0)
    if not most.wait_s or most.wait_s < _MUCH * most.step_s:
        return diagnosis
    latest = LatestRank(
        rank=row.rank,
        last_share=row.last_share or 0.0,
        waiting_rank=most.rank,
        waiting_share=most.wait_s / most.step_s,
    )
    return replace(diagnosis, verdict=replace(diagnosis.verdict, latest=latest))


def with_replay(diagnosis: Diagnosis, trace: TraceStatistics) -> Diagnosis:
    """Return the diagnosis whose bottleneck is what by replay gains most, shares as evidence.

    It stays where the device mostly waits for what the trace does not show, and, but for what is
    far more, beside the host's own work, which the profiler makes longer.
    """
    replay = trace.what_if
    if replay is None or not replay.reproduced or diagnosis.bottleneck not in replay.branches:
        return diagnosis
    gains = {branch: gain for branch in _TREE if (gain := replay.gain(branch))}
    own_gain = gains.pop(diagnosis.bottleneck, 1.0)
    best = max(gains, key=lambda branch: gains[branch], default=diagnosis.bottleneck)
    own_saved = 1.0 - 1.0 / own_gain
    saved = 1.0 - 1.0 / gains.get(best, 1.0)
    hidden = own_gain < MATTERS
    if not hidden and saved <= _MORE * own_saved:
        return diagnosis
    unseen = 1.0 - replay.explained_s / replay.replayed_s
    far_more = saved > _FAR_MORE * own_saved or best != "cpu"
    is_gain = saved >= 1.0 - 1.0 / MATTERS
    replayed = ReplayedGain(
        branch=diagnosis.bottleneck,
        speedup=own_gain,
        hidden=hidden,
        best=best if is_gain else None,
        best_speedup=gains[best] if is_gain else None,
        is_limit=is_gain and far_more and unseen < max(_MUCH, saved),
        profiler_slows=best == "cpu",
        unseen_share=unseen if hidden and unseen >= _MUCH else None,
    )
    if replayed.is_limit:
        diagnosis = _moved(diagnosis, best)
        replayed = replace(replayed, unseen_share=None)
    return replace(diagnosis, verdict=replace(diagnosis.verdict, replay=replayed))


def _moved(diagnosis: Diagnosis, branch: str) -> Diagnosis:
    """Return the diagnosis with this branch as the bottleneck; the share named before stays."""
    detail = detail_of(branch, diagnosis.findings, catalogue.checks(), on_gpu=True)
    cause = next((f for f in diagnosis.findings if f.check == detail), None)
    proof = None
    opening = [quote.check for quote in diagnosis.verdict.opening]
    if cause is not None and cause.evidence and cause.check not in opening:
        proof = Quote(check=cause.check, facts=[cause.evidence[0].fact])
    place = cause.location if cause is not None else None
    verdict = replace(diagnosis.verdict, place=place, proof=proof)
    return replace(diagnosis, bottleneck=branch, detail=detail, verdict=verdict)


def _without_device(diagnosis: Diagnosis, why: Evidence) -> Diagnosis:
    """Return the diagnosis without what rests on a device that was not recorded."""
    checks = catalogue.checks()
    waits = {
        check.question.text
        for check in checks.values()
        if check.question and check.asks("data_loader")
    }
    path = [
        question
        if question.question in waits
        else replace(question, answer="not measured", value=None)
        for question in diagnosis.path
    ]
    findings = [f for f in diagnosis.findings if checks[f.check].branch not in _RESTS_ON_DEVICE]
    verdict = Verdict(kind="no_device", why=why)
    return replace(
        diagnosis, bottleneck="none", detail=None, verdict=verdict, path=path, findings=findings
    )
