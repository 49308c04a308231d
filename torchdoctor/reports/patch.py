"""What goes with the patch: where to apply it, what it was measured at, what it leaves out."""

from __future__ import annotations

from torchdoctor.errors import UsageError
from torchdoctor.records import RecommendedFix, Report
from torchdoctor.reports import wording
from torchdoctor.reports.figures import clean, fix_with_settings, speedup

_APPLY = "Apply it in {}: git apply, or patch -p1."


def remarks(report: Report) -> list[str]:
    """Lines for the user, in order; never part of the diff."""
    recommended = report.recommendation
    beside = [fix.fix for fix in recommended.also_offered if fix.edit]
    others = [f"Other edits, one with each --fix ID: {', '.join(beside)}."] if beside else []
    if not recommended.fixes:
        return ["Nothing to patch: the report recommends no fix.", *others]
    folder = recommended.patch_folder or report.workload.cwd
    lines = [_APPLY.format(clean(folder))] if recommended.patch else []
    if measured := wording.patch(report):
        lines.append(measured[0].upper() + measured[1:])
    by_hand = [fix for fix in recommended.fixes if fix.fix not in recommended.patch_fixes]
    if by_hand:
        lines.append("To be changed by hand:")
    for fix in by_hand:
        lines.append(f"  {fix_with_settings(fix.fix, fix.settings)}")
        lines += [f"    {line}" for line in clean(fix.instruction or "").splitlines()]
    return lines + others


def edit_of(report: Report, ident: str) -> RecommendedFix:
    """The fix of this id, recommended or offered beside.

    Raises:
        UsageError: the report shows no such fix.
    """
    recommended = report.recommendation
    shown = [*recommended.fixes, *recommended.also_offered]
    for fix in shown:
        if fix.fix == ident:
            return fix
    known = ", ".join(dict.fromkeys(fix.fix for fix in shown)) or "none"
    tried = next((trial for trial in report.trials if trial.fix == ident), None)
    if tried is None:
        raise UsageError(f"The report offers no fix {ident!r}; it offers: {known}.")
    reason = f": {clean(tried.reason).rstrip('.')}" if tried.reason else ""
    raise UsageError(
        f"The report holds no edit of {ident!r}, for it came out {tried.verdict}{reason}. "
        f"It holds edits or advice of: {known}. For another: run again with --fixes."
    )


def remarks_on(report: Report, fix: RecommendedFix) -> list[str]:
    """What was measured of one fix, and where to apply its edit or what to do by hand."""
    name = fix_with_settings(fix.fix, fix.settings)
    lines = [_APPLY.format(clean(fix.folder or report.workload.cwd))] if fix.edit else []
    trials = [t for t in report.trials if (t.fix, t.settings) == (fix.fix, fix.settings)]
    if trials and trials[0].speedup is not None:
        measured = speedup(trials[0].speedup)
        lines.append(f"{name} by itself, applied at run time: {measured}, {trials[0].verdict}.")
    else:
        lines.append(f"{name} was not measured by itself.")
    if not fix.edit:
        lines.append("To be changed by hand:")
        lines += [f"  {line}" for line in clean(fix.instruction or "").splitlines()]
    return lines
