"""Findings that came, went, or cost something else."""

from __future__ import annotations

from torchdoctor.advice import catalogue
from torchdoctor.compare.step_times import is_trace, parts_s
from torchdoctor.words import Finding, Report
from torchdoctor.words.comparison import ComparedSide, FindingChange
from torchdoctor.words.figures import place, relative

_SAME_LINE, _SAME_FILE, _ELSEWHERE = range(3)
_LEFT = 0.1  # of the other side's cost: with less it is gone
_SMALL_CHANGE, _OF_ITSELF = 0.01, 0.1  # of the shorter step, and of what it cost before


def findings(a: Report, b: Report, sides: tuple[ComparedSide, ComparedSide]) -> list[FindingChange]:
    """New ones, then gone ones, then changed ones; each by what it costs, the most first."""
    changes = []
    for old, new in _pairs(a, b):
        if is_trace(a) != is_trace(b) and _only_of_a_run(a, old, new):
            continue
        if (a.trace is None) != (b.trace is None) and _only_by_a_trace(a, old, new):
            continue
        change = _change(old, new, a, b, sides)
        if old is None or new is None or _matters(change, old, new, sides):
            changes.append(change)
    order = ("new", "gone", "changed")
    return sorted(changes, key=lambda change: (order.index(change.change), -_cost_s(change)))


def _only_of_a_run(a: Report, old: Finding | None, new: Finding | None) -> bool:
    """Return True for what a trace cannot show: loaders, settings and sensors."""
    return (new if is_trace(a) else old) is not None and (old is None or new is None)


def _only_by_a_trace(a: Report, old: Finding | None, new: Finding | None) -> bool:
    """Without a profiler window nobody looked: what only it could show is neither new nor gone."""
    finding = new if a.trace is None else old
    if finding is None or (old is not None and new is not None):
        return False
    check = catalogue.checks().get(finding.check)
    return check is None or all("trace" in example for example in check.fires)


def _pairs(a: Report, b: Report) -> list[tuple[Finding | None, Finding | None]]:
    """Findings of the same check, the nearest to each other first: an edit moves lines."""
    old, new = list(a.diagnosis.findings), list(b.diagnosis.findings)
    pairs: list[tuple[Finding | None, Finding | None]] = []
    for apart in (_SAME_LINE, _SAME_FILE, _ELSEWHERE):
        for before in list(old):
            for after in new:
                if before.check == after.check and _apart(before, after, a, b) <= apart:
                    pairs.append((before, after))
                    old = [x for x in old if x is not before]
                    new = [x for x in new if x is not after]
                    break
    return [*pairs, *((before, None) for before in old), *((None, before) for before in new)]


def _apart(old: Finding, new: Finding, a: Report, b: Report) -> int:
    places = place(old.location, a.workload.cwd), place(new.location, b.workload.cwd)
    if places[0] == places[1]:
        return _SAME_LINE
    if old.location is None or new.location is None:
        return _ELSEWHERE
    old_file = relative(old.location.file, a.workload.cwd)
    return _SAME_FILE if old_file == relative(new.location.file, b.workload.cwd) else _ELSEWHERE


def _change(
    old: Finding | None,
    new: Finding | None,
    a: Report,
    b: Report,
    sides: tuple[ComparedSide, ComparedSide],
) -> FindingChange:
    shown = new or old
    assert shown is not None
    check = catalogue.checks().get(shown.check)  # a report may name a check of another version
    a_s, b_s = _seconds(old, sides[0]), _seconds(new, sides[1])
    return FindingChange(
        check=shown.check,
        change="new" if old is None else "gone" if new is None else "changed",
        branch=check.branch if check else "",
        a_s=_below_threshold(shown, a, sides[0], b_s) if old is None else a_s,
        b_s=_below_threshold(shown, b, sides[1], a_s) if new is None else b_s,
        a_location=old.location if old else None,
        b_location=new.location if new else None,
        a_place=place(old.location, a.workload.cwd) if old else "",
        b_place=place(new.location, b.workload.cwd) if new else "",
        evidence=shown.evidence,
    )


def _below_threshold(
    finding: Finding, report: Report, side: ComparedSide, other_s: float | None
) -> float | None:
    """Return what is left of a cost whose check is silent; None: little or unknown.

    Args:
        found: of the other side.
        report: the side where it is not.
        side: for its step.
        other_s: the cost of the other side.
    """
    check = catalogue.checks().get(finding.check)
    # Only the check of a whole branch has a share where it finds nothing.
    name = check.share_field if check is not None and check.question is not None else None
    share = getattr(report.baseline.shares, name) if name else None
    if name == "communication" and report.trace and report.trace.step_s:
        exposed_s = report.trace.communication_exposed_s
        share = share if exposed_s is None else exposed_s / report.trace.step_s
    if not share or other_s is None or share * parts_s(side) < _LEFT * other_s:
        return None
    left_s: float = share * parts_s(side)
    return left_s


def _seconds(finding: Finding | None, side: ComparedSide) -> float | None:
    return (
        None
        if finding is None or finding.share_of_step is None
        else finding.share_of_step * parts_s(side)
    )


def _matters(
    change: FindingChange,
    old: Finding,
    new: Finding,
    sides: tuple[ComparedSide, ComparedSide],
) -> bool:
    if change.a_s is None or change.b_s is None:
        return (change.a_s is None) != (change.b_s is None) or old.severity != new.severity
    difference = abs(change.b_s - change.a_s)
    shorter_s = min(parts_s(side) for side in sides)
    return difference > max(_SMALL_CHANGE * shorter_s, _OF_ITSELF * change.a_s)


def _cost_s(change: FindingChange) -> float:
    if change.change == "changed":
        return abs((change.b_s or 0.0) - (change.a_s or 0.0))
    return max(change.a_s or 0.0, change.b_s or 0.0)
