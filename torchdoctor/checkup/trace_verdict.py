"""What a trace does not show, no verdict may rest on: the diagnosis of a trace, worded by that."""

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace

from torchdoctor.advice import catalogue
from torchdoctor.advice.diagnosis import diagnose
from torchdoctor.checkup.windows import of_window
from torchdoctor.trace.timeline import usual_part
from torchdoctor.words import Diagnosis, RankTime, Recording, TraceStatistics
from torchdoctor.words.figures import seconds
from torchdoctor.words.traced import MATTERS

_UNSEEN = (
    "The host launched work on a device that was not recorded. Whether the host waited for it or "
    "computed is unknown: record with ProfilerActivity.CUDA (or the device's own activity)."
)
_NO_TIME = "The events of the trace have no durations, so where the time goes is unknown."
_MUCH = 0.1  # of a step
_REPLAYED = {
    "data_loader": "the wait for data",
    "memcpy": "copies",
    "communication": "communication",
    "gpu": "the GPU's kernels",
    "cpu": "the host's operators, Python and launches",
    "runtime": "other driver calls",
}
_MOSTLY = 0.5  # of the exposed time in collectives
_RESTS_ON_DEVICE = ("gpu", "cpu", "communication", "other")
_LAUNCHES = re.compile(r"Launch|Memcpy|Enqueue")


def diagnosed(recording: Recording, trace: TraceStatistics) -> Diagnosis:
    """Return the diagnosis as far as the trace goes, without what is no part of a usual step."""
    usual = usual_part(recording, trace)
    diagnosis = as_far_as_recorded(diagnose(usual, catalogue.checks(), catalogue.fixes()), trace)
    if trace.unusual:
        diagnosis = of_the_rest(diagnosis, trace.unusual, (trace.step_s or 0.0) - trace.unusual_s)
    else:
        diagnosis = with_replay(with_waits(diagnosis, trace, recording.ranks), trace)
    return in_its_words(of_window(diagnosis, trace), trace)


def as_far_as_recorded(diagnosis: Diagnosis, trace: TraceStatistics) -> Diagnosis:
    """Return the diagnosis without what the trace cannot know: steps, or a device's work."""
    if not trace.steps:
        diagnosis = _without_steps(diagnosis)
        if trace.start_up_s:
            of_what = "of the trace after its start-up"
            told = diagnosis.sentence.replace("of the trace", of_what, 1)
            diagnosis = replace(diagnosis, sentence=told)
    if all(share is None for share in astuple(trace.shares)):
        return replace(diagnosis, sentence=_NO_TIME)
    if diagnosis.bottleneck == "data_loader":
        return diagnosis
    if trace.device_missing:
        return _without_device(diagnosis, trace.device_missing)
    launches = any(_LAUNCHES.search(call.name) for call in trace.runtime_calls)
    if not trace.has_device and launches and diagnosis.bottleneck in ("cpu", "other", "none"):
        return _without_device(diagnosis, _UNSEEN)
    return diagnosis


def of_the_rest(diagnosis: Diagnosis, why: str, rest_s: float) -> Diagnosis:
    """Return the diagnosis of the usual part, worded so, and with the reason first."""
    whole = re.compile(r"\b(?:(?:each|a|the)(?: profiled)? step|the trace)\b")
    diagnosis = _reworded(diagnosis, lambda text: whole.sub("the rest", text))
    sentence = (
        f"{why} So the time of a step is unknown: record more steps, after some of warm-up. "
        f"The rest of the recording takes {seconds(rest_s)}. {diagnosis.sentence}"
    )
    return replace(
        diagnosis,
        bottleneck="none",
        sentence=sentence,
        path=[replace(x, answer="not measured", value=None) for x in diagnosis.path],
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
    share, rest = waited_s / trace.step_s, (exposed_s - waited_s) / trace.step_s
    told = (
        f"rank {row.rank} waits for the others {share:.0%} of each step, and communicates "
        f"{rest:.0%} of it"
    )
    checks = catalogue.checks()
    findings = [
        replace(f, evidence=[*f.evidence, f"Of that {told}."])
        if checks[f.check].asks("communication")
        else f
        for f in diagnosis.findings
    ]
    diagnosis = replace(diagnosis, findings=findings)
    if diagnosis.bottleneck == "communication":
        return replace(diagnosis, sentence=f"The ranks wait for each other: {told}.")
    return _of_the_latest(diagnosis, row, ranks)


def _of_the_latest(diagnosis: Diagnosis, row: RankTime, ranks: Sequence[RankTime]) -> Diagnosis:
    """Return the diagnosis of the rank that comes last; it says first how long others wait."""
    most = max(ranks, key=lambda rank: (rank.wait_s or 0.0) / rank.step_s if rank.step_s else 0.0)
    if not most.wait_s or most.wait_s < _MUCH * most.step_s:
        return diagnosis
    told = (
        f"The ranks wait for rank {row.rank}, which comes last to {row.last_share or 0.0:.0%} of "
        f"the collectives: rank {most.rank} waits {most.wait_s / most.step_s:.0%} of its step."
    )
    return replace(diagnosis, sentence=f"{told} On rank {row.rank}: {diagnosis.sentence}")


def with_replay(diagnosis: Diagnosis, trace: TraceStatistics) -> Diagnosis:
    """Return the diagnosis; it says so where its bottleneck has, by replay, no gain."""
    replay = trace.what_if
    if replay is None or not replay.reproduced or diagnosis.bottleneck not in replay.branches:
        return diagnosis
    gains = {branch: replay.speedup(branch) or 1.0 for branch in replay.branches}
    del gains[diagnosis.bottleneck]
    best, own = max(gains, key=lambda x: gains[x]), replay.gain(diagnosis.bottleneck) or 1.0
    if own >= MATTERS:
        return diagnosis
    shown, why = diagnosis.sentence.replace(": it is the limit.", "."), "other work hides this cost"
    if (unseen := 1.0 - replay.explained_s / replay.replayed_s) >= _MUCH:
        unseen_wait = f"The device waits {unseen:.0%} of each step for what is not in the trace"
        shown, why = f"{unseen_wait}, such as other ranks. {shown}", "it would wait all the same"
    text = (
        f"By replay of the trace (a model), the step would be only {own:.2f}x as fast without "
        f"{_REPLAYED[diagnosis.bottleneck]}: {why}."
    )
    if gains[best] >= MATTERS:
        text += f" Without {_REPLAYED[best]} it would be {gains[best]:.2f}x as fast"
        slowed = best == "cpu" and diagnosis.bottleneck == "gpu"
        text += ", or less, as the profiler slows the host down." if slowed else "."
    return replace(diagnosis, sentence=f"{shown} {text}")


def _without_device(diagnosis: Diagnosis, why: str) -> Diagnosis:
    """Return the diagnosis without what rests on a device that was not recorded."""
    checks = catalogue.checks()
    waits = {x.question.text for x in checks.values() if x.question and x.asks("data_loader")}
    path = [
        x if x.question in waits else replace(x, answer="not measured", value=None)
        for x in diagnosis.path
    ]
    findings = [f for f in diagnosis.findings if checks[f.check].branch not in _RESTS_ON_DEVICE]
    return replace(
        diagnosis, bottleneck="none", detail=None, sentence=why, path=path, findings=findings
    )


def _without_steps(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis worded for a trace whose steps are unknown."""

    def reworded(text: str) -> str:
        text = re.sub(r"^Each step\b", "The trace", text)
        text = re.sub(r"\ba [\d.]+ ms step\b", "the trace", text)
        text = re.sub(r"\b(of )?(each|the|a profiled|the profiled) step\b", r"\1the trace", text)
        return re.sub(r"\b(?:a|per) step\b", "in the trace", text)

    return _reworded(diagnosis, reworded)


def _reworded(diagnosis: Diagnosis, words: Callable[[str], str]) -> Diagnosis:
    findings = [replace(f, evidence=[words(x) for x in f.evidence]) for f in diagnosis.findings]
    return replace(diagnosis, sentence=words(diagnosis.sentence), findings=findings)


def in_its_words(diagnosis: Diagnosis, trace: TraceStatistics) -> Diagnosis:
    """Return the diagnosis in words of the recorded program and its device."""
    if trace.trains is not True:
        diagnosis = _reworded(diagnosis, lambda x: x.replace("Training waits", "The program waits"))
    if trace.platform in ("mtia", "hpu"):
        diagnosis = _reworded(diagnosis, lambda x: x.replace("GPU", "accelerator"))
    return diagnosis
