"""Walks the decision tree that the check files form: data loader, memcpy, communication, GPU
utilization, CPU execution, other. docs/decisions/diagnosis-rule.md says why the rule is as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchdoctor.records import (
    Diagnosis,
    Finding,
    Question,
    Recording,
    Shares,
    StepStatistics,
    TraceStatistics,
)
from torchdoctor.records.lookup import inline_preparation

TREE = ("data-wait", "memcpy-share", "communication-share", "gpu-utilization", "cpu-execution")
_SEVERITY = {"high": 0, "moderate": 1, "advice": 2}
# A finding without a measured share (a switch left on) ranks as if it cost this much.
_UNMEASURED_SHARE = 0.25

_VERDICTS = {
    "data_loader": "Training waits for data {value} of each step",
    "memcpy": "Memory copies hold up {value} of each step",
    "communication": "Communication between devices takes {value} of each step",
    "gpu": "The GPU computes {value} of each step: it is the limit",
    "cpu": "The host is the limit: {value} of each step is CPU execution",
    "other": "{value} of each step is spent outside data loading, copies and computation",
}


def shares(steps: StepStatistics | None, trace: TraceStatistics | None) -> Shares:
    """Where the step's time goes: from the trace on a GPU, else from the step log.

    On a GPU the data loader's share comes from the step log where the profiler's differs by over
    ten points: a profiled step is longer, so what the loader hides shifts.
    """
    if trace is not None and trace.has_device:
        return trace.shares
    if steps is None:
        return trace.shares if trace is not None else Shares()
    if steps.mean_s <= 0:
        return Shares()
    data = steps.data_wait_s / steps.mean_s
    computing = (steps.forward_s + steps.backward_s + steps.optimizer_s) / steps.mean_s
    return _normalised(data, computing)


def with_inline_preparation(recording: Recording) -> Recording:
    """Count batch preparation outside a DataLoader as data loader time, taken from `other`."""
    found = inline_preparation(recording)
    known = recording.shares
    if found is None or found.share < 0.01 or known.data_loader is None:
        return recording
    if recording.trace is not None and recording.trace.has_device:
        # On a GPU only what no kernel hides counts: at most the time in which it is idle.
        idle = (known.cpu or 0.0) + (known.other or 0.0)
        moved = min(found.share, idle)
        cpu = max((known.cpu or 0.0) - moved, 0.0)
        other = max((known.other or 0.0) - max(moved - (known.cpu or 0.0), 0.0), 0.0)
        changed = replace(known, data_loader=known.data_loader + moved, cpu=cpu, other=other)
    else:
        moved = min(found.share, known.other or 0.0)
        changed = replace(
            known, data_loader=known.data_loader + moved, other=(known.other or 0.0) - moved
        )
    return replace(recording, shares=changed)


def diagnose(
    recording: Recording, checks: Mapping[str, Any], fixes: Mapping[str, Any] | None = None
) -> Diagnosis:
    """Answer the tree's questions and name the bottleneck.

    Args:
        recording: what was observed, `shares` included.
        checks: check modules by id.
        fixes: fix modules by id, for `Finding.fixes`.
    """
    findings = _findings(recording, checks, fixes or {})
    path, bottleneck, value = _walk(recording, checks)
    detail = _detail(bottleneck, findings, recording.shares.gpu is not None)
    return Diagnosis(
        bottleneck=bottleneck,
        detail=detail,
        sentence=_sentence(bottleneck, value, detail, findings),
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
    path.append(
        Question(
            question="Is anything else high?",
            answer="not measured" if other is None else "yes" if other >= 0.3 else "no",
            metric="share of the step outside all of the above",
            value=other,
            threshold=0.3,
            source="torchdoctor: the same bound as for CPU execution",
        )
    )
    if found is not None:
        return path, *found
    if other is not None and other >= 0.3:
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


def _branch_of(ident: str, has_gpu: bool) -> str:
    from torchdoctor.catalogue import checks

    branch: str = checks()[ident].UNDER
    # Without a GPU the CPU computes: what is asked of the GPU's arithmetic is asked of it.
    return "cpu" if branch == "gpu" and not has_gpu else branch


def _detail(bottleneck: str, findings: list[Finding], has_gpu: bool) -> str | None:
    """The check below the branch that explains most; a specific illness before a general one."""
    for finding in findings:
        if finding.check not in TREE and _branch_of(finding.check, has_gpu) == bottleneck:
            return finding.check
    return None


def _sentence(
    bottleneck: str, value: float | None, detail: str | None, findings: list[Finding]
) -> str:
    if bottleneck == "none" or value is None:
        return "No part of the step stands out."
    text = _VERDICTS[bottleneck].format(value=f"{value:.0%}")
    evidence = next((f.evidence[0] for f in findings if f.check == detail and f.evidence), None)
    return f"{text}. {evidence}" if evidence else f"{text}."


def _normalised(data: float, computing: float) -> Shares:
    data = min(max(data, 0.0), 1.0)
    computing = min(max(computing, 0.0), 1.0 - data)
    return Shares(data_loader=data, cpu=computing, other=max(1.0 - data - computing, 0.0))
