"""Walks the decision tree that the check files form: data loader, memcpy, communication, GPU
utilization, CPU execution, other. docs/decisions/diagnosis-rule.md says why the rule is as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchdoctor.facts.lookup import python_between
from torchdoctor.words import Diagnosis, Finding, Question, Recording

TREE = ("data-wait", "memcpy-share", "communication-share", "gpu-utilization", "cpu-execution")
_SEVERITY = {"high": 0, "moderate": 1, "advice": 2}
# A finding without a measured share (a switch left on) ranks as if it cost this much.
_UNMEASURED_SHARE = 0.25
_OTHER_THRESHOLD = 0.30
_OUTSIDE = "work-outside-model"
_IN_NO_OPERATOR = "outside-operators"

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
    """A sentence where the program ended by itself before its steps could say anything."""
    steps = recording.steps
    if steps is None or not steps.program_ended or steps.total_steps_seen >= _FEWEST_STEPS:
        return None
    seen = steps.total_steps_seen
    return (
        f"The program ended after {seen} whole step{'s' * (seen != 1)}, too few to tell what slows "
        "it: let it train for 30 or more (its own option for steps or epochs, or more data)."
    )


def diagnose(
    recording: Recording, checks: Mapping[str, Any], fixes: Mapping[str, Any] | None = None
) -> Diagnosis:
    """Answer the tree's questions and name the bottleneck.

    Args:
        recording: what was observed, `shares` included.
        checks: check modules by id.
        fixes: fix modules by id, for `Finding.fixes`.
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
        sentence=_sentence(bottleneck, value, detail, findings, on_gpu),
        path=path,
        findings=findings,
    )


def _walk(
    recording: Recording, checks: Mapping[str, Any]
) -> tuple[list[Question], str, float | None]:
    path: list[Question] = []
    found: tuple[str, float] | None = None
    for ident in TREE:
        check = checks[ident]
        value = check.measure(recording)
        if ident == "communication-share" and value is None:
            continue  # asked only where there are several devices
        answer = "not measured"
        if value is not None:
            answer = "yes" if value >= check.THRESHOLD else "no"
        elif ident in ("memcpy-share", "gpu-utilization") and not recording.has_gpu:
            answer = "no GPU"
        path.append(
            Question(
                question=check.QUESTION,
                answer=answer,
                metric=check.METRIC,
                value=value,
                threshold=check.THRESHOLD,
                source=check.THRESHOLD_SOURCE,
            )
        )
        if answer == "yes" and value is not None and found is None:
            found = (check.UNDER, value)
    other = recording.shares.other
    if other is not None:
        other = max(other - python_between(recording), 0.0)  # that is asked as CPU execution
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
    if found is not None:
        return path, *found
    if high:
        return path, "other", other
    return path, "none", None


def _findings(
    recording: Recording, checks: Mapping[str, Any], fixes: Mapping[str, Any]
) -> list[Finding]:
    found = [
        replace(finding, fixes=[i for i, fix in fixes.items() if finding.check in fix.TREATS])
        for check in checks.values()
        for finding in check.look(recording)
    ]
    return sorted(found, key=_rank)


def _rank(finding: Finding) -> tuple[int, float]:
    share = finding.share_of_step
    return _SEVERITY[finding.severity], -(_UNMEASURED_SHARE if share is None else share)


def detail_of(
    bottleneck: str, findings: Sequence[Finding], checks: Mapping[str, Any], on_gpu: bool
) -> str | None:
    """The check below the branch that explains most; None where nothing below it was found.

    Among the findings of the highest severity, one without a share comes first: it is a switch or
    a setting, and so a cause, where a share may be its symptom.
    """

    def branch_of(ident: str) -> str:
        branch: str = checks[ident].UNDER
        # Without a GPU the CPU computes: what is asked of the GPU's arithmetic is asked of it.
        return "cpu" if branch == "gpu" and not on_gpu else branch

    below = [f for f in findings if branch_of(f.check) == bottleneck]
    specific = [f for f in below if f.check not in TREE]
    if not specific:
        return below[0].check if below else None
    worst = [f for f in specific if f.severity == specific[0].severity]
    if worst[0].severity == "high":
        worst.sort(key=lambda f: f.share_of_step is not None)
    return worst[0].check


def _sentence(
    bottleneck: str, value: float | None, detail: str | None, findings: list[Finding], on_gpu: bool
) -> str:
    if bottleneck == "none" or value is None:
        return "No part of the step stands out."
    # What a later branch of the tree holds may be the larger part: then it is said first.
    aside = [f for f in findings if f.check == _OUTSIDE and bottleneck != "other"]
    larger = [" ".join(f.evidence) for f in aside if (f.share_of_step or 0.0) > value]
    kind = bottleneck
    if bottleneck == "cpu" and not on_gpu:
        kind = "cpu_beside" if larger else "cpu_only"
    text = _VERDICTS[kind].format(value=f"{value:.0%}")
    specific = [f for f in findings if f.check == detail and f.check not in TREE]
    evidence = [f.evidence[0] for f in specific if f.evidence][:1]
    if bottleneck == "other" and detail == _IN_NO_OPERATOR:
        return " ".join(specific[0].evidence)  # what a trace knows of it, and no more
    if bottleneck == "other" and detail == _OUTSIDE:
        evidence = [specific[0].evidence[-1]]  # the verdict has said the share
    return " ".join([*larger, f"{text}.", *evidence])
