"""Two reports -> what changed between them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean, variance

from torchdoctor.errors import Inconclusive
from torchdoctor.records import Finding, Interval, Report, TraceStatistics
from torchdoctor.records.comparison import Change, Comparison
from torchdoctor.trials.compare import as_interval, t_quantile

_OPERATORS = 10
_WORTH_NAMING = 0.002  # of the longer step; a smaller change is not listed
_COUNTS = ("kernels_per_step", "syncs_per_step", "pageable_copies", "operator_calls_per_step")


def compare(before: Report, after: Report) -> Comparison:
    """What changed from `before` to `after`.

    Raises:
        Inconclusive: one of them has no step time.
    """
    old_s, new_s = _step_s(before), _step_s(after)
    if not old_s or not new_s:
        which = "the first" if not old_s else "the second"
        raise Inconclusive(f"They cannot be compared: {which} has no step time.")
    least = _WORTH_NAMING * max(old_s, new_s)
    old_memory, new_memory = before.baseline.peak_memory_bytes, after.baseline.peak_memory_bytes
    return Comparison(
        step=Change(name="step", before=old_s, after=new_s),
        ratio=_ratio(before.baseline.launches_s, after.baseline.launches_s),
        branches=_changes(_branches(before, old_s), _branches(after, new_s), least),
        operators=_changes(_operators(before), _operators(after), least)[:_OPERATORS],
        counts=_changes(_counts(before.trace), _counts(after.trace), 0.5),
        peak_memory=Change(name="peak memory", before=old_memory, after=new_memory)
        if old_memory and new_memory
        else None,
        new_findings=_without(after.diagnosis.findings, before.diagnosis.findings),
        gone_findings=_without(before.diagnosis.findings, after.diagnosis.findings),
        doubts=_doubts(before, after),
    )


def _step_s(report: Report) -> float | None:
    time = report.baseline.step_time_s
    if time is not None:
        return time.mean or time.median
    return report.trace.step_s if report.trace is not None else None


def _ratio(before: list[float], after: list[float]) -> Interval | None:
    """B / A by Welch's t interval over launches, which are the samples."""
    if len(before) < 2 or len(after) < 2:
        return None
    old, new = ([math.log(x) for x in launches] for launches in (before, after))
    parts = variance(old) / len(old), variance(new) / len(new)
    error = sum(parts)
    if error == 0:
        return as_interval(fmean(new) - fmean(old), 0.0)
    degrees = error**2 / sum(
        part**2 / (len(x) - 1) for part, x in zip(parts, (old, new), strict=True)
    )
    return as_interval(fmean(new) - fmean(old), t_quantile(0.975, degrees) * math.sqrt(error))


def _branches(report: Report, step_s: float) -> dict[str, float]:
    shares = asdict(report.baseline.shares)
    return {name: share * step_s for name, share in shares.items() if share is not None}


def _operators(report: Report) -> dict[str, float]:
    trace = report.trace
    if trace is None:
        return {}
    found: dict[str, float] = {}
    for one in trace.operators:
        cost = (one.device_s or 0.0) if trace.has_device else one.self_s
        found[one.name] = found.get(one.name, 0.0) + cost
    return found


def _counts(trace: TraceStatistics | None) -> dict[str, float]:
    if trace is None:
        return {}
    known = {name: getattr(trace, name) for name in _COUNTS}
    return {name: value for name, value in known.items() if value is not None}


def _changes(old: Mapping[str, float], new: Mapping[str, float], least: float) -> list[Change]:
    """What differs by at least so much; a name that one side lacks counts as 0 there."""
    if not old or not new:
        return []
    names = dict.fromkeys([*old, *new])
    found = [Change(name=n, before=old.get(n, 0.0), after=new.get(n, 0.0)) for n in names]
    worth = [one for one in found if abs(one.difference) >= least]
    return sorted(worth, key=lambda one: -abs(one.difference))


def _without(findings: list[Finding], others: list[Finding]) -> list[Finding]:
    known = {other.check for other in others}
    return [finding for finding in findings if finding.check not in known]


def _doubts(before: Report, after: Report) -> list[str]:
    doubts = []
    old, new = before.environment, after.environment
    for what, a, b in (
        ("GPU", [g.name for g in old.gpus], [g.name for g in new.gpus]),
        ("processor", old.cpu, new.cpu),
        ("driver", old.driver, new.driver),
        ("torch", old.torch, new.torch),
    ):
        if a and b and a != b:
            doubts.append(f"Another {what}: {_words(a)} before, {_words(b)} after.")
    if bool(before.baseline.launches_s) != bool(after.baseline.launches_s):
        doubts.append("One is of a run, the other of a trace: a profiled step is longer.")
    doubts.append(
        "They were recorded at different times: what else ran on the machine is in the figures. "
        "torchdoctor gate measures two versions side by side."
    )
    return doubts


def _words(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
