"""Walks the decision tree that the check files form, and asks the ceilings about the answer.

Shares suggest, taking a cost away proves: docs/decisions/diagnosis.md and upper-bounds.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchdoctor.facts.lookup import exposed_python, on_host
from torchdoctor.facts.stacks import line_of_branch
from torchdoctor.words import (
    BRANCHES,
    CheckSpec,
    Diagnosis,
    Finding,
    FixSpec,
    Interval,
    Location,
    Question,
    Recording,
    Shares,
    TriedCeiling,
)
from torchdoctor.words.figures import counted, percent, ratio, says_something, speedup

_WASTES = 0.5  # of a step, from which on waste is told beside the bottleneck
_SEVERITY = {"high": 0, "moderate": 1, "advice": 2}
# A finding without a measured share (a switch left on) ranks as if it cost this much.
_UNMEASURED_SHARE = 0.25
_OTHER_THRESHOLD = 0.30

_VERDICTS = {
    "data_loader": "Training waits for data {value} of each step",
    "data_loader_inferring": "The model waits for data {value} of each step",
    "memcpy": "Memory copies hold up {value} of each step",
    "communication": "Communication between devices takes {value} of each step",
    "gpu": "The GPU computes {value} of each step: it is the limit",
    "gpu_partly": "The GPU computes {value} of each step, and waits in the rest",
    "cpu": "The GPU waits for the host, which takes {value} of each step",
    "cpu_only": "The CPU is the limit: it computes {value} of each step",
    "cpu_beside": "The CPU computes {value} of each step",
    "other": "{value} of each step is spent outside data loading, copies and computation",
}
_FAR_MORE = 4.0  # times the time that its own cost takes
_APART = 0.15  # of the step: share and experiment that differ by more disagree
_FEWEST_STEPS = 5  # in all: of fewer, most are the program's start


def too_short(recording: Recording) -> str | None:
    """Return a sentence if the program ended before its steps could say anything."""
    steps = recording.steps
    if steps is None or not steps.program_ended or steps.total_steps_seen >= _FEWEST_STEPS:
        return None
    return (
        f"The program ended after {counted(steps.total_steps_seen, 'whole step')}, too few to tell "
        "what slows it down: let it train for 30 steps or more (by its options or with more data)."
    )


def diagnose(
    recording: Recording,
    checks: Mapping[str, CheckSpec],
    fixes: Mapping[str, FixSpec] | None = None,
) -> Diagnosis:
    """Answer the tree's questions and name the bottleneck; `fixes` are for `Finding.fixes`."""
    if (why_not := too_short(recording)) is not None:
        return Diagnosis(bottleneck="none", sentence=why_not)
    findings = _findings(recording, checks, fixes or {})
    path, bottleneck, value = _walk(recording, checks)
    on_gpu = recording.has_gpu or recording.shares.gpu is not None
    detail = detail_of(bottleneck, findings, checks, on_gpu, value or 0.0)
    cause = next((f for f in findings if f.check == detail), None)
    half = (value or 0) / 2
    if cause is not None and bottleneck in ("cpu", "other") and (cause.share_of_step or 0) >= half:
        # What the GPU mostly waits for says what ends the wait.
        for number, f in enumerate(findings):
            if checks[f.check].asks("gpu"):
                findings[number] = replace(f, fixes=[x for x in f.fixes if x in cause.fixes])
    sentence, location = _told(bottleneck, value, cause, findings, checks, on_gpu, recording)
    sentence = _with_told_besides(sentence, findings, checks)
    wrong = [f for f in findings if checks[f.check].told == "first" and f.severity == "high"]
    location = wrong[0].location if wrong else location
    return Diagnosis(
        bottleneck=bottleneck,
        detail=detail,
        sentence=sentence,
        location=location,
        path=path,
        findings=findings,
    )


def tree(checks: Mapping[str, CheckSpec]) -> list[CheckSpec]:
    """Return the checks whose questions make the path, in the order of the branches."""
    return [check for branch in BRANCHES for check in checks.values() if check.asks(branch)]


def _walk(
    recording: Recording, checks: Mapping[str, CheckSpec]
) -> tuple[list[Question], str, float | None]:
    """Return the path, and the branch of the yes that leads, with its value."""
    path: list[Question] = []
    high: list[tuple[str, float | None]] = []

    def ask(branch: str, value: float | None, unknown: str, **asked: Any) -> None:
        answer = unknown if value is None else "yes" if value >= asked["threshold"] else "no"
        path.append(Question(answer=answer, value=value, **asked))
        high.extend([(branch, value)] * (answer == "yes"))

    for check in tree(checks):
        asked = check.question
        assert asked is not None
        value = asked.measure(recording)
        if value is not None or not asked.optional:
            ask(
                check.branch,
                value,
                "no GPU" if asked.needs_gpu and not recording.has_gpu else "not measured",
                question=asked.text,
                metric=asked.metric,
                threshold=check.threshold,
                source=check.source,
            )
    other = recording.shares.other
    # Python between operators is asked as CPU execution.
    python = exposed_python(recording.trace, recording.shares)
    ask(
        "other",
        None if other is None else max(other - python, 0.0),
        "not measured",
        question="Is anything else high?",
        metric="share of the step outside all of the above",
        threshold=_OTHER_THRESHOLD,
        source="torchdoctor: the same bound as for CPU execution",
    )
    return (path, *_leading(high, recording)) if high else (path, "none", None)


def _leading(
    high: Sequence[tuple[str, float | None]], recording: Recording
) -> tuple[str, float | None]:
    """Return the branch that names the bottleneck: the first yes, or what a GPU waits for most.

    The host's share counts without copies that block it, which memcpy has.
    """
    shares, branches = recording.shares, [branch for branch, _ in high]
    waits = high[: branches.index("gpu")] if "gpu" in branches else high
    if shares.gpu is None or len(waits) < 2:
        return high[0]
    blocked = max((dict(high).get("memcpy") or 0.0) - (shares.memcpy or 0.0), 0.0)
    return max(waits, key=lambda x: (x[1] or 0.0) - blocked * (x[0] == "cpu"))


def _findings(
    recording: Recording, checks: Mapping[str, CheckSpec], fixes: Mapping[str, FixSpec]
) -> list[Finding]:
    findings = [
        replace(finding, fixes=[i for i, fix in fixes.items() if finding.check in fix.treats])
        for check in checks.values()
        for finding in check.findings(recording)
    ]

    def rank(finding: Finding) -> tuple[int, float]:
        share = finding.share_of_step
        return _SEVERITY[finding.severity], -(_UNMEASURED_SHARE if share is None else share)

    return sorted(findings, key=rank)


def detail_of(
    bottleneck: str,
    findings: Sequence[Finding],
    checks: Mapping[str, CheckSpec],
    on_gpu: bool,
    value: float = 0.0,
) -> str | None:
    """Return the check below the branch that explains most; None if none below it has a finding.

    Of the most severe one without a share comes first: a setting, so a cause and no symptom.
    """

    def branch_of(ident: str) -> str:
        branch = checks[ident].branch
        # Without a GPU the CPU computes: what is asked of the GPU's arithmetic is asked of it.
        return "cpu" if branch == "gpu" and not on_gpu else branch

    # Time in no operator is the host's as well, and explains it if it is most of the `value`.
    least = {bottleneck: 0.0} | ({"other": value / 2} if bottleneck == "cpu" and on_gpu else {})
    below = [f for f in findings if (f.share_of_step or 0.0) >= least.get(branch_of(f.check), 2.0)]
    specific = [f for f in below if checks[f.check].question is None]
    if not specific:
        return below[0].check if below else None
    worst = [f for f in specific if f.severity == specific[0].severity]
    if worst[0].severity == "high":
        worst.sort(key=lambda f: f.share_of_step is not None)
    return worst[0].check


def _told(
    bottleneck: str,
    value: float | None,
    cause: Finding | None,
    findings: list[Finding],
    checks: Mapping[str, CheckSpec],
    on_gpu: bool,
    recording: Recording,
) -> tuple[str, Location | None]:
    """Return the verdict, and the place of its first sentence's share."""
    if bottleneck == "none" or value is None:
        return "No part of the step stands out.", None
    # What a later branch of the tree holds may be the larger part: then it is said first.
    later = [(f, checks[f.check]) for f in findings if (f.share_of_step or 0.0) > value]
    aside = [f for f, check in later if check.opens_verdict and check.branch != bottleneck]
    larger = [" ".join(f.evidence) for f in aside]
    location = aside[0].location if aside else line_of_branch(recording, bottleneck)
    if location is None and not aside and cause is not None:
        # Where no sampled line holds it (a trace), the finding that holds most of it may.
        holds_most = (cause.share_of_step or 0.0) >= value / 2
        location = cause.location if holds_most else None
    kind = bottleneck
    if bottleneck == "cpu" and not on_gpu:
        kind = "cpu_beside" if larger else "cpu_only"
    kind = f"{kind}_inferring" if kind == "data_loader" and recording.infers else kind
    kind = "gpu_partly" if kind == "gpu" and value < 2 / 3 else kind
    text = _VERDICTS[kind].format(value=f"{value:.0%}") + _parts(kind, value, recording.shares)
    if cause is None or checks[cause.check].question is not None or not cause.evidence:
        on_gpu_host = recording.trace and kind == "cpu" and on_host(recording.trace)
        return " ".join([*larger, f"{text}.", *(on_gpu_host or [])]), location
    quoted = checks[cause.check].verdict
    if quoted == "all":
        return " ".join(cause.evidence), cause.location
    evidence = cause.evidence[-1 if quoted == "last" else 0]
    return " ".join([*larger, f"{text}.", evidence]), location


def _with_told_besides(
    sentence: str, findings: Sequence[Finding], checks: Mapping[str, CheckSpec]
) -> str:
    """Return a verdict with what is told before it, and behind it, whatever the bottleneck."""

    def evidence(told: str) -> list[str]:
        chosen = [f for f in findings if checks[f.check].told == told and f.severity == "high"]
        if told == "also":
            chosen = [f for f in chosen if (f.share_of_step or 1.0) >= _WASTES]
        texts = [" ".join(finding.evidence) for finding in chosen]
        return [text for text in texts if text not in sentence]

    return " ".join([*evidence("first"), sentence, *evidence("also")])


def _parts(kind: str, value: float, shares: Shares) -> str:
    """Return what the value of a verdict adds up from, in the report's terms; "" of one part."""
    parts = {
        "memcpy": (shares.memcpy or 0.0, "the copies themselves", "the host blocked in copy calls"),
        "cpu": (value - (shares.runtime or 0.0), "operators and Python", "driver calls"),
    }
    first, *names = parts.get(kind, (value, "", ""))
    told = sorted(zip((first, value - first), names, strict=True), reverse=True)
    texts = [f"{percent(x).replace(' ', '')} {name}" for x, name in told if round(x, 2)]
    return f": {', '.join(texts)}" if len(texts) > 1 else ""


def by_experiment(
    diagnosis: Diagnosis,
    tried: Sequence[TriedCeiling],
    checks: Mapping[str, CheckSpec],
    on_gpu: bool,
) -> tuple[Diagnosis, list[str]]:
    """Return the diagnosis as the ceilings confirm or refute it, and doubts about shares.

    A bottleneck whose cost is hidden, or gives far less than another, gives way to the branch whose
    ceiling gives most. If none gives anything, it stays, and the sentence says so.
    """
    doubts = [doubt for trial in tried if (doubt := _disagreement(trial)) is not None]
    whole = [trial for trial in tried if trial.whole and trial.decided]
    branches = {trial.ceiling: _branch(trial, diagnosis, checks) for trial in whole}
    by_branch = {branches[trial.ceiling]: trial for trial in reversed(whole)}
    own = by_branch.get(diagnosis.bottleneck)
    if own is None or own.speedup is None:
        return diagnosis, doubts
    gains = [
        t for t in whole if branches[t.ceiling] != diagnosis.bottleneck and t.verdict == "gain"
    ]
    best = max(gains, key=lambda t: t.speedup.low if t.speedup else 0.0, default=None)
    measured = f" Without {own.removes} the program was {bound(own.speedup)} as fast."
    if own.verdict == "gain":
        best = best if best is not None and _gives_far_more(best, own) else None
        measured = measured if best is not None else ""  # it stands among the upper bounds
    else:
        measured = f" Without {own.removes} a step takes as long ({bound(own.speedup)})."
        if own.verdict == "nothing":
            best = None  # little was expected of it
        else:
            measured += " Other work hides this cost, so it is not the bottleneck."
    sentence = f"{diagnosis.sentence}{measured}"
    if best is None or best.speedup is None:
        return replace(diagnosis, sentence=sentence), doubts
    bottleneck = branches[best.ceiling]
    faster = f"without that, the program was {bound(best.speedup)} as fast"
    sentence += f" The limit is {best.removes}: {faster}."
    detail = detail_of(bottleneck, diagnosis.findings, checks, on_gpu)
    return replace(diagnosis, bottleneck=bottleneck, detail=detail, sentence=sentence), doubts


def _branch(trial: TriedCeiling, diagnosis: Diagnosis, checks: Mapping[str, CheckSpec]) -> str:
    """Return the branch of the tree that a trial took the cost of.

    Without forward and backward the host's work is gone as well: an idle GPU's limit is the host.
    """
    answers = {asked.question: asked.answer for asked in diagnosis.path}
    questions = {check.branch: check.question for check in checks.values() if check.question}
    gpu, cpu = (answers.get(questions[branch].text) for branch in ("gpu", "cpu"))
    return "cpu" if trial.branch == "gpu" and (gpu, cpu) == ("no", "yes") else trial.branch


def _gives_far_more(best: TriedCeiling, own: TriedCeiling) -> bool:
    assert best.speedup is not None and own.speedup is not None
    saved, own_saved = 1.0 - 1.0 / best.speedup.low, 1.0 - 1.0 / own.speedup.high
    return best.speedup.low > own.speedup.high and saved > _FAR_MORE * own_saved


def _disagreement(trial: TriedCeiling) -> str | None:
    """Return a sentence if share and gain differ by more than the interval explains."""
    if trial.speedup is None or trial.share is None or not trial.decided or trial.speedup.low <= 0:
        return None
    low, high = (1.0 - 1.0 / bound for bound in (trial.speedup.low, trial.speedup.high))
    if low - _APART <= trial.share <= high + _APART:
        return None
    why = "Other work hides the rest of that share."
    if trial.share < low:
        why = "The share explains less than that: one of the two measurements was disturbed."
    return (
        f"The profile gives {trial.removes} {trial.share:.0%} of a step. Without that, "
        f"the program was {bound(trial.speedup)} as fast. {why}"
    )


def bound(gain: Interval) -> str:
    """Return a speed-up with its interval; of a useless interval only what is certain."""
    useless = not says_something(gain) and gain.low > 1
    return f"more than {ratio(gain.low)}x" if useless else speedup(gain)
