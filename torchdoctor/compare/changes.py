"""Where the change of the step's time lies: parts of the step, operators, findings, figures."""

from collections.abc import Callable
from dataclasses import asdict

from torchdoctor.advice import catalogue
from torchdoctor.compare.step_times import Side
from torchdoctor.schema import Finding, Report, Shares
from torchdoctor.schema.comparison import ComparedFigure, FindingChange, OperatorChange, PartChange
from torchdoctor.schema.figures import PHASE_LABELS, SHARE_LABELS, place
from torchdoctor.schema.traced import LISTED_OPERATORS

MOST_OPERATORS = 10
_WORTH_NAMING = 0.005  # of the shorter step, for an operator's change
_LEFT = 0.1  # of the other side's cost: with less a finding is gone
_SMALL_CHANGE, _OF_ITSELF = 0.01, 0.1  # of the shorter step, and of what a finding cost before
_COUNTED = (
    ("kernels", "kernels_per_step", ""),
    ("kernel, median", "kernel_median_us", "us"),
    ("GPU busy, collectives included", "gpu_busy_share", "share"),
    ("copied to device", "h2d_bytes", "bytes"),
    ("copied to host", "d2h_bytes", "bytes"),
    ("pageable copies", "pageable_copies", ""),
    ("host blocked in copies", "blocking_copy_s", "s"),
    ("syncs", "syncs_per_step", ""),
    ("host blocked in syncs", "sync_s", "s"),
    ("collectives", "communication_s", "s"),
    ("collectives, exposed", "communication_exposed_s", "s"),
    ("operator calls", "operator_calls_per_step", ""),
    ("Python outside operators", "python_s", "s"),
)


def parts(a: Side, b: Side) -> tuple[str, list[PartChange]]:
    """Return "branches", "phases" or "none", and seconds per step of each, most changed first."""
    phases = a.report.steps is not None and b.report.steps is not None
    shares = [side.report.baseline.shares for side in (a, b)]
    gaps = [[value is None for value in asdict(share).values()] for share in shares]
    profiled = [side.report.trace is not None for side in (a, b)]
    # Both measured the same branches, and both or neither by a profiler window.
    same = gaps[0] == gaps[1] and profiled[0] == profiled[1]
    if Shares() not in shares and (same or not phases):
        kind = "branches"
        old = asdict(shares[0])
        new = asdict(shares[1])
        names = list(SHARE_LABELS)
    elif phases:
        kind = "phases"
        names = list(PHASE_LABELS)
        old = _phases(a.report)
        new = _phases(b.report)
    else:
        return "none", []
    changes = []
    for name in names:
        a_s = a.cost_s(old[name])
        b_s = b.cost_s(new[name])
        change_s = None if a_s is None or b_s is None else b_s - a_s
        if a_s is not None or b_s is not None:
            changes.append(PartChange(name=name, a_s=a_s, b_s=b_s, change_s=change_s))
    changes.sort(key=lambda part: (part.change_s is None, -abs(part.change_s or 0.0)))
    return kind, changes


def _phases(report: Report) -> dict[str, float | None]:
    """Return each phase's share of the observed step."""
    steps = report.steps
    if steps is None or steps.mean_s <= 0:
        return dict.fromkeys(PHASE_LABELS)
    return {name: getattr(steps, f"{name}_s") / steps.mean_s for name in PHASE_LABELS}


def figures(a: Side, b: Side) -> list[ComparedFigure]:
    """Return throughput, memory, and what the traces count; only what one of them measured."""
    memory = [side.report.baseline.peak_memory_bytes for side in (a, b)]
    compared = [
        ComparedFigure(name="samples per second", a=a.samples_per_s, b=b.samples_per_s),
        ComparedFigure(name="peak memory", a=memory[0], b=memory[1], unit="bytes"),
    ]
    for name, field, unit in _COUNTED:
        old, new = (getattr(side.report.trace, field, None) for side in (a, b))
        compared.append(ComparedFigure(name=name, a=old, b=new, unit=unit))
    return [figure for figure in compared if figure.a is not None or figure.b is not None]


def operators(a: Report, b: Report) -> list[OperatorChange]:
    """Return at most ten operators that changed most per step; none without two traces."""
    if not (a.trace and b.trace and a.trace.operators and b.trace.operators):
        return []
    listed = [
        {operator.name: operator for operator in trace.operators} for trace in (a.trace, b.trace)
    ]
    shorter_s = min(a.trace.step_s or 0.0, b.trace.step_s or 0.0)
    changes = []
    for name in {**listed[0], **listed[1]}:
        old = listed[0].get(name)
        new = listed[1].get(name)
        host_s = (new.self_s if new else 0.0) - (old.self_s if old else 0.0)
        device_s = ((new and new.device_s) or 0.0) - ((old and old.device_s) or 0.0)
        change_s = max(host_s, device_s, key=abs)
        kind = "changed"
        recounted = False
        if old is None:
            kind = "newly listed" if len(listed[0]) >= LISTED_OPERATORS else "new"
        elif new is None:
            kind = "no longer listed" if len(listed[1]) >= LISTED_OPERATORS else "gone"
        else:
            more = new.calls_per_step - old.calls_per_step
            recounted = abs(more) > 0.01 * old.calls_per_step
        if abs(change_s) <= _WORTH_NAMING * shorter_s and not recounted:
            continue
        changes.append(
            OperatorChange(
                name=name,
                change=kind,
                change_s=change_s,
                a_calls=old.calls_per_step if old else None,
                b_calls=new.calls_per_step if new else None,
                a_self_s=old.self_s if old else None,
                b_self_s=new.self_s if new else None,
                a_device_s=old.device_s if old else None,
                b_device_s=new.device_s if new else None,
            )
        )
    return sorted(changes, key=lambda change: -abs(change.change_s))[:MOST_OPERATORS]


def findings(a: Side, b: Side) -> list[FindingChange]:
    """Return new findings, then gone ones, then changed ones; each by its cost, the most first."""
    changes = []
    for old, new in _pairs(a, b):
        if old is not None and new is not None:
            change = _change("changed", old, new, a, b)
            matters = change.a_s != change.b_s or old.severity != new.severity
            if change.a_s is not None and change.b_s is not None:
                least_s = max(_SMALL_CHANGE * min(a.parts_s, b.parts_s), _OF_ITSELF * change.a_s)
                matters = abs(change.b_s - change.a_s) > least_s
        elif old is not None:
            change, matters = _change("gone", old, old, a, b), _could_show(b, a, old)
        else:
            assert new is not None
            change, matters = _change("new", new, new, a, b), _could_show(a, b, new)
        changes += [change] if matters else []
    order = ("new", "gone", "changed")
    return sorted(changes, key=lambda change: (order.index(change.change), -_cost_s(change)))


def _could_show(side: Side, other: Side, finding: Finding) -> bool:
    """Return True if this side, as it was recorded, would show a finding of the other's."""
    if side.is_trace and not other.is_trace:
        return False
    if side.report.trace is not None or other.report.trace is None:
        return True
    check = catalogue.checks().get(finding.check)
    return check is not None and not all("trace" in example for example in check.fires)


def _pairs(a: Side, b: Side) -> list[tuple[Finding | None, Finding | None]]:
    """Return findings of the same check, the nearest to each other first: an edit moves lines."""
    old = list(a.report.diagnosis.findings)
    new = list(b.report.diagnosis.findings)
    pairs: list[tuple[Finding | None, Finding | None]] = []
    same: list[Callable[[str], str]] = [
        str,
        lambda location: location.rpartition(":")[0],
        lambda _: "",
    ]
    for of in same:  # the line, the file, or anywhere
        for before in list(old):
            for after in new:
                near = of(_place(before, a)) == of(_place(after, b))
                if before.check == after.check and near:
                    pairs.append((before, after))
                    old = [finding for finding in old if finding is not before]
                    new = [finding for finding in new if finding is not after]
                    break
    return [*pairs, *((before, None) for before in old), *((None, after) for after in new)]


def _place(finding: Finding, side: Side) -> str:
    return place(finding.location, side.report.workload.cwd)


def _change(kind: str, old: Finding, new: Finding, a: Side, b: Side) -> FindingChange:
    """Return a change; `kind` says which of the findings is there."""
    check = catalogue.checks().get(new.check)  # a report may name a check of another version
    a_s = a.cost_s(old.share_of_step)
    b_s = b.cost_s(new.share_of_step)
    in_a = kind != "new"
    in_b = kind != "gone"
    return FindingChange(
        check=new.check,
        change=kind,
        branch=check.branch if check else "",
        a_s=a_s if in_a else _below_threshold(new.check, a, b_s),
        b_s=b_s if in_b else _below_threshold(old.check, b, a_s),
        a_place=_place(old, a) if in_a else "",
        b_place=_place(new, b) if in_b else "",
        evidence=new.evidence,
    )


def _below_threshold(ident: str, side: Side, other_s: float | None) -> float | None:
    """Return what is left of a cost on the side whose check is silent; None: little or unknown."""
    check = catalogue.checks().get(ident)
    # Only the check of a whole branch has a share where it finds nothing.
    name = check.share_field if check is not None and check.question is not None else None
    left_s = side.cost_s(getattr(side.report.baseline.shares, name)) if name else None
    return left_s if left_s and other_s is not None and left_s >= _LEFT * other_s else None


def _cost_s(change: FindingChange) -> float:
    if change.change == "changed":
        return abs((change.b_s or 0.0) - (change.a_s or 0.0))
    return max(change.a_s or 0.0, change.b_s or 0.0)
