"""Walks the decision tree that the check files form: data loader, memcpy, communication, GPU
utilization, CPU execution, other. docs/decisions/diagnosis.md says why the rule is as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchdoctor.facts.lookup import exposed_python
from torchdoctor.words import BRANCHES, CheckSpec, Diagnosis, Finding, FixSpec, Question, Recording

_SEVERITY = {"high": 0, "moderate": 1, "advice": 2}
# A finding without a measured share (a switch left on) ranks as if it cost this much.
_UNMEASURED_SHARE = 0.25
_OTHER_THRESHOLD = 0.30

_VERDICTS = {
    "data_loader": "Training waits for data {value} of each step",
    "memcpy": "Memory copies hold up {value} of each step",
    "communication": "Communication between devices takes {value} of each step",
    "gpu": "The GPU computes {value} of each step: it is the limit",
    "cpu": "The GPU waits for the host, which takes {value} of each step",
    "cpu_only": "The CPU is the limit: it executes the model {value} of each step",
    "cpu_beside": "The CPU executes the model {value} of each step",
    "other": "{value} of each step is spent outside data loading, copies and computation",
}
_FEWEST_STEPS = 5  # in all: of fewer, most are the program's start


def too_short(recording: Recording) -> str | None:
    """Return a sentence if the program ended before its steps could say anything."""
    steps = recording.steps
    if steps is None or not steps.program_ended or steps.total_steps_seen >= _FEWEST_STEPS:
        return None
    number = steps.total_steps_seen
    return (
        f"The program ended after {number} whole step{'s' * (number != 1)}, too few to tell what "
        "slows it: let it train for 30 or more (its own option for steps or epochs, or more data)."
    )


def diagnose(
    recording: Recording,
    checks: Mapping[str, CheckSpec],
    fixes: Mapping[str, FixSpec] | None = None,
) -> Diagnosis:
    """Answer the tree's questions and name the bottleneck.

    Args:
        recording: what was observed, `shares` included.
        checks: by id.
        fixes: by id, for `Finding.fixes`.
    """
    if (why_not := too_short(recording)) is not None:
        return Diagnosis(bottleneck="none", sentence=why_not)
    findings = _findings(recording, checks, fixes or {})
    path, bottleneck, value = _walk(recording, checks)
    on_gpu = recording.has_gpu or recording.shares.gpu is not None
    detail = detail_of(bottleneck, findings, checks, on_gpu)
    return Diagnosis(
        bottleneck=bottleneck,
        detail=detail,
        sentence=_sentence(bottleneck, value, detail, findings, checks, on_gpu),
        path=path,
        findings=findings,
    )


def tree(checks: Mapping[str, CheckSpec]) -> list[CheckSpec]:
    """Return the checks whose questions make the path, in the order of the branches."""
    return [check for branch in BRANCHES for check in checks.values() if check.asks(branch)]


def _walk(
    recording: Recording, checks: Mapping[str, CheckSpec]
) -> tuple[list[Question], str, float | None]:
    path: list[Question] = []
    first: tuple[str, float] | None = None  # branch and value of the first yes
    for check in tree(checks):
        asked = check.question
        assert asked is not None
        value = asked.measure(recording)
        if value is None and asked.optional:
            continue
        answer = "no GPU" if asked.needs_gpu and not recording.has_gpu else "not measured"
        if value is not None:
            answer = "yes" if value >= check.threshold else "no"
        path.append(
            Question(
                question=asked.text,
                answer=answer,
                metric=asked.metric,
                value=value,
                threshold=check.threshold,
                source=check.source,
            )
        )
        if answer == "yes" and value is not None and first is None:
            first = (check.branch, value)
    other = recording.shares.other
    if other is not None:  # Python between operators is asked as CPU execution
        other = max(other - exposed_python(recording.trace, recording.shares), 0.0)
    high = other is not None and other >= _OTHER_THRESHOLD
    path.append(
        Question(
            question="Is anything else high?",
            answer="not measured" if other is None else "yes" if high else "no",
            metric="share of the step outside all of the above",
            value=other,
            threshold=_OTHER_THRESHOLD,
            source="torchdoctor: the same bound as for CPU execution",
        )
    )
    if first is not None:
        return path, *first
    return (path, "other", other) if high else (path, "none", None)


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
    bottleneck: str, findings: Sequence[Finding], checks: Mapping[str, CheckSpec], on_gpu: bool
) -> str | None:
    """Return the check below the branch that explains most; None if none below it has a finding.

    Among the findings of the highest severity, one without a share comes first: it is a switch or
    a setting, and so a cause, where a share may be its symptom.
    """

    def branch_of(ident: str) -> str:
        branch = checks[ident].branch
        # Without a GPU the CPU computes: what is asked of the GPU's arithmetic is asked of it.
        return "cpu" if branch == "gpu" and not on_gpu else branch

    below = [f for f in findings if branch_of(f.check) == bottleneck]
    specific = [f for f in below if checks[f.check].question is None]
    if not specific:
        return below[0].check if below else None
    worst = [f for f in specific if f.severity == specific[0].severity]
    if worst[0].severity == "high":
        worst.sort(key=lambda f: f.share_of_step is not None)
    return worst[0].check


def _sentence(
    bottleneck: str,
    value: float | None,
    detail: str | None,
    findings: list[Finding],
    checks: Mapping[str, CheckSpec],
    on_gpu: bool,
) -> str:
    if bottleneck == "none" or value is None:
        return "No part of the step stands out."
    # What a later branch of the tree holds may be the larger part: then it is said first.
    later = [(f, checks[f.check]) for f in findings if (f.share_of_step or 0.0) > value]
    aside = [f for f, check in later if check.opens_verdict and check.branch != bottleneck]
    larger = [" ".join(f.evidence) for f in aside]
    kind = bottleneck
    if bottleneck == "cpu" and not on_gpu:
        kind = "cpu_beside" if larger else "cpu_only"
    text = _VERDICTS[kind].format(value=f"{value:.0%}")
    cause = next((f for f in findings if f.check == detail), None)
    if cause is None or checks[cause.check].question is not None or not cause.evidence:
        return " ".join([*larger, f"{text}."])
    quoted = checks[cause.check].verdict
    if quoted == "all":
        return " ".join(cause.evidence)
    return " ".join([*larger, f"{text}.", cause.evidence[-1 if quoted == "last" else 0]])
