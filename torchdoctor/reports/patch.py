"""What goes with the patch: where to apply it, what it was measured at, what it leaves out."""

from __future__ import annotations

from torchdoctor.records import Report
from torchdoctor.reports import wording
from torchdoctor.reports.figures import clean, fix_with_settings


def remarks(report: Report) -> list[str]:
    """Lines for the user, in order; never part of the diff."""
    recommended = report.recommendation
    if not recommended.fixes:
        return ["Nothing to patch: the report recommends no fix."]
    lines = []
    if recommended.patch:
        lines.append(f"Apply it in {clean(report.workload.cwd)}: git apply, or patch -p1.")
    if measured := wording.patch(report):
        lines.append(measured[0].upper() + measured[1:])
    by_hand = [fix for fix in recommended.fixes if fix.fix not in recommended.patch_fixes]
    if by_hand:
        lines.append("To be changed by hand:")
    for fix in by_hand:
        lines.append(f"  {fix_with_settings(fix.fix, fix.settings)}")
        lines += [f"    {line}" for line in clean(fix.instruction or "").splitlines()]
    return lines
