"""Walks the decision tree that the check files form, and asks the ceilings about the answer.

Shares suggest, taking a cost away proves: docs/decisions/diagnosis.md and upper-bounds.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchdoctor.queries.known_shapes import shape_at
from torchdoctor.queries.lookup import exposed_python, on_host
from torchdoctor.queries.stacks import line_of_branch
from torchdoctor.schema import (
    BRANCHES,
    CheckSpec,
    Diagnosis,
    Evidence,
    Finding,
    FixSpec,
    Question,
    Quote,
    Recording,
    Removal,
    Shares,
    TriedCeiling,
    Verdict,
    VerdictPart,
    fact,
)

_WASTES = 0.5  # of a step, from which on waste is told beside the bottleneck
_SEVERITY = {"high": 0, "moderate": 1, "advice": 2}
# A finding without a measured share (a switch left on) ranks as if it cost this much.
_UNMEASURED_SHARE = 0.25
_OTHER_THRESHOLD = 0.30

_FAR_MORE = 4.0  # times the time that its own cost takes
_APART = 0.15  # of the step: share and experiment that differ by more disagree
_OVERLAP = 0.05  # of the calls of models
_FEWEST_STEPS = 5  # in all: of fewer, most are the program's start


def overlapping_calls(recording: Recording) -> int:
    """Return how many calls overlapped those that were observed; 0: hardly any, or it trains."""
    if recording.steps is None or not recording.steps.boundary.infers:
        return 0
    models = recording.main.models
    overlapping = sum(model.overlapping_forwards for model in models)
    return overlapping if overlapping > _OVERLAP * sum(model.forwards for model in models) else 0


def too_short(recording: Recording) -> int | None:
    """Return how many steps a program took that ended too early to say anything; None: enough."""
    steps = recording.steps
    if steps is None or not steps.program_ended or steps.total_steps_seen >= _FEWEST_STEPS:
        return None
    return steps.total_steps_seen


def diagnose(
    recording: Recording,
    checks: Mapping[str, CheckSpec],
    fixes: Mapping[str, FixSpec] | None = None,
) -> Diagnosis:
    """Answer the tree's questions and name the bottleneck; `fixes` are for `Finding.fixes`."""
    if (steps := too_short(recording)) is not None:
        ended = fact("ended-early", steps=steps)
        return Diagnosis(bottleneck="none", verdict=Verdict(kind="too_short", why=ended))
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
                findings[number] = replace(f, fixes=[fix for fix in f.fixes if fix in cause.fixes])
    return Diagnosis(
        bottleneck=bottleneck,
        detail=detail,
        verdict=_verdict(bottleneck, value, cause, findings, checks, on_gpu, recording),
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
        if answer == "yes":
            high.append((branch, value))

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
        metric="share of {the_step} outside all of the above",
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
    shares = recording.shares
    branches = [branch for branch, _ in high]
    waits = high[: branches.index("gpu")] if "gpu" in branches else high
    if shares.gpu is None or len(waits) < 2:
        return high[0]
    blocked = max((dict(high).get("memcpy") or 0.0) - (shares.memcpy or 0.0), 0.0)

    def unblocked_share(branch_share: tuple[str, float | None]) -> float:
        branch, share = branch_share
        return (share or 0.0) - (blocked if branch == "cpu" else 0.0)

    return max(waits, key=unblocked_share)


def _findings(
    recording: Recording, checks: Mapping[str, CheckSpec], fixes: Mapping[str, FixSpec]
) -> list[Finding]:
    findings = []
    for check in checks.values():
        treats = [ident for ident, fix in fixes.items() if check.ident in fix.treats]
        for finding in check.findings(recording):
            shape = shape_at(recording, finding.location)
            findings.append(replace(finding, fixes=treats, shape=shape.id if shape else None))

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


def _verdict(
    bottleneck: str,
    value: float | None,
    cause: Finding | None,
    findings: list[Finding],
    checks: Mapping[str, CheckSpec],
    on_gpu: bool,
    recording: Recording,
) -> Verdict:
    """Return the verdict, whose place is that of what is said first."""
    unused = [f for f in findings if checks[f.check].opens_verdict and f.share_of_step is None]
    unused = [f for f in unused if f.severity != "advice"]
    opening = _quotes(unused)
    wasted = [f for f in findings if checks[f.check].closes_verdict and f.severity == "high"]
    wasted = [f for f in wasted if f.share_of_step is None or f.share_of_step >= _WASTES]
    closing = _quotes([f for f in wasted if f != cause])
    if bottleneck == "none" or value is None:
        return Verdict(kind="none", opening=opening, closing=closing)
    # What a later branch of the tree holds may be the larger part: then it is said first.
    later = [(f, checks[f.check]) for f in findings if (f.share_of_step or 0.0) > value]
    aside = [f for f, check in later if check.opens_verdict and check.branch != bottleneck]
    place = aside[0].location if aside else line_of_branch(recording, bottleneck)
    if place is None and not aside and cause is not None:
        # Where no sampled line holds it (a trace), the finding that holds most of it may.
        holds_most = (cause.share_of_step or 0.0) >= value / 2
        place = cause.location if holds_most else None
    kind = bottleneck
    if bottleneck == "cpu" and not on_gpu:
        kind = "cpu_beside" if aside else "cpu_only"
    kind = "gpu_partly" if kind == "gpu" and value < 2 / 3 else kind
    verdict = Verdict(
        kind=kind,
        share=value,
        parts=_parts(kind, value, recording.shares),
        place=place,
        opening=opening,
        beside=[_quote(f) for f in aside],
        closing=closing,
    )
    if cause is None or checks[cause.check].question is not None or not cause.evidence:
        traced = recording.trace if kind == "cpu" else None
        return replace(verdict, facts=on_host(traced) if traced is not None else [])
    if cause in unused:
        return verdict
    proof = _quote(cause)
    match checks[cause.check].verdict:
        case "all":
            finding = replace(verdict, kind="finding", parts=[], place=cause.location, beside=[])
            return replace(finding, proof=proof)
        case "last":
            return replace(verdict, proof=replace(proof, facts=proof.facts[-1:]))
    return replace(verdict, proof=replace(proof, facts=proof.facts[:1]))


def _quote(finding: Finding) -> Quote:
    return Quote(check=finding.check, facts=[evidence.fact for evidence in finding.evidence])


def _quotes(findings: Sequence[Finding]) -> list[Quote]:
    """Return a quote for each check, of its first finding."""
    return list({finding.check: _quote(finding) for finding in reversed(findings)}.values())[::-1]


def _parts(kind: str, value: float, shares: Shares) -> list[VerdictPart]:
    """Return what the value of a verdict adds up from, the most first; [] of one part."""
    if kind == "memcpy":
        copies = shares.memcpy or 0.0
        parts = {"copies": copies, "blocked": value - copies}
    elif kind == "cpu":
        driver = shares.runtime or 0.0
        parts = {"operators": value - driver, "driver": driver}
    else:
        return []
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    shown = [VerdictPart(name=name, share=share) for name, share in ranked if round(share, 2)]
    return shown if len(shown) > 1 else []


def by_experiment(
    diagnosis: Diagnosis,
    tried: Sequence[TriedCeiling],
    checks: Mapping[str, CheckSpec],
    on_gpu: bool,
) -> tuple[Diagnosis, list[Evidence]]:
    """Return the diagnosis as the ceilings confirm or refute it, and doubts about shares.

    A bottleneck whose cost is hidden, or gives far less than another, gives way to the branch whose
    ceiling gives most. If none gives anything, it stays, and the verdict says so.
    """
    doubts = [doubt for trial in tried if (doubt := _disagreement(trial)) is not None]
    whole = [trial for trial in tried if trial.whole and trial.decided]
    branches = {trial.ceiling: _branch(trial, diagnosis, checks) for trial in whole}
    by_branch = {branches[trial.ceiling]: trial for trial in reversed(whole)}
    own_trial = by_branch.get(diagnosis.bottleneck)
    if own_trial is None or own_trial.speedup is None:
        return diagnosis, doubts
    gains = [
        t for t in whole if branches[t.ceiling] != diagnosis.bottleneck and t.verdict == "gain"
    ]
    best = max(gains, key=lambda t: t.speedup.low if t.speedup else 0.0, default=None)
    if own_trial.verdict == "gain":
        best = best if best is not None and _gives_far_more(best, own_trial) else None
    elif own_trial.verdict == "nothing":
        best = None  # little was expected of it
    removal = Removal(
        removed=own_trial.removes,
        speedup=own_trial.speedup,
        outcome=own_trial.verdict,
        limit=best.removes if best is not None else None,
        limit_speedup=best.speedup if best is not None else None,
    )
    verdict = replace(diagnosis.verdict, experiment=removal)
    if best is None or best.speedup is None:
        return replace(diagnosis, verdict=verdict), doubts
    bottleneck = branches[best.ceiling]
    detail = detail_of(bottleneck, diagnosis.findings, checks, on_gpu)
    return replace(diagnosis, bottleneck=bottleneck, detail=detail, verdict=verdict), doubts


def _branch(trial: TriedCeiling, diagnosis: Diagnosis, checks: Mapping[str, CheckSpec]) -> str:
    """Return the branch of the tree that a trial took the cost of.

    Without forward and backward the host's work is gone as well: an idle GPU's limit is the host.
    """
    answers = {asked.question: asked.answer for asked in diagnosis.path}
    questions = {check.branch: check.question for check in checks.values() if check.question}
    gpu, cpu = (answers.get(questions[branch].text) for branch in ("gpu", "cpu"))
    return "cpu" if trial.branch == "gpu" and (gpu, cpu) == ("no", "yes") else trial.branch


def _gives_far_more(best: TriedCeiling, own_trial: TriedCeiling) -> bool:
    assert best.speedup is not None and own_trial.speedup is not None
    saved = 1.0 - 1.0 / best.speedup.low
    own_saved = 1.0 - 1.0 / own_trial.speedup.high
    return best.speedup.low > own_trial.speedup.high and saved > _FAR_MORE * own_saved


def _disagreement(trial: TriedCeiling) -> Evidence | None:
    """Return a doubt if share and gain differ by more than the interval explains."""
    if trial.speedup is None or trial.share is None or not trial.decided or trial.speedup.low <= 0:
        return None
    low, high = (1.0 - 1.0 / bound for bound in (trial.speedup.low, trial.speedup.high))
    if low - _APART <= trial.share <= high + _APART:
        return None
    ident = "share-explains-less" if trial.share < low else "share-partly-hidden"
    gain = [trial.speedup.low, trial.speedup.estimate, trial.speedup.high]
    return fact(ident, removed=trial.removes, profiled=trial.share, gain=gain)
