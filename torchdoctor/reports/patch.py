"""What goes with the patch: where to apply it, what it was measured at, what it leaves out."""

from torchdoctor.reports import wording
from torchdoctor.words import RecommendedFix, Report
from torchdoctor.words.errors import UsageError
from torchdoctor.words.figures import clean, fix_with_settings, speedup

_APPLY = "Apply it in {}: git apply, or patch -p1."
_GIT = 'A "git apply" behind this pipe ends with "No valid patches in input": that is all it means.'


def remarks(report: Report) -> list[str]:
    """Return lines for the user, in order; never part of the diff."""
    recommended = report.recommendation
    beside = [fix.fix for fix in recommended.also_offered if fix.edit]
    elsewhere = [f"Other edits, one with each --fix ID: {', '.join(beside)}."] if beside else []
    if not recommended.fixes:
        nothing = "The report recommends no fix: there is no diff, and nothing to apply."
        return [f"{nothing} {_GIT}", *elsewhere]
    folder = recommended.patch_folder or report.workload.cwd
    apply = f"No edit could be made for certain: there is nothing to apply. {_GIT}"
    if recommended.patch:
        apply = _APPLY.format(clean(folder))
    measured = wording.patch(report)
    made = [fix for fix in recommended.fixes if fix.fix in recommended.patch_fixes]
    by_hand = [fix for fix in recommended.fixes if fix not in made]
    return [
        apply,
        *([measured] if measured else []),
        *_also(made),
        *_by_hand(by_hand),
        *elsewhere,
    ]


def remarks_on(
    report: Report, fixes: list[RecommendedFix], made: list[str], folder: str | None
) -> list[str]:
    """Return what was measured of these fixes, where to apply their diff and what it lacks.

    `made` are the ids of those in the diff, which belongs into the folder; None: there is no diff.
    """
    lines = [_APPLY.format(clean(folder))] if folder is not None else []
    together = _measured_together(report, fixes) if len(fixes) > 1 else ""
    lines += [together] if together else [_measured(report, fix) for fix in fixes]
    if len(fixes) > 1 and not together:
        lines.append("They were not measured together.")
    left_out = [fix for fix in fixes if fix.fix not in made]
    lines += _also([fix for fix in fixes if fix not in left_out])
    if clashing := [fix.fix for fix in left_out if fix.edit]:
        lines.append(
            f"Without {', '.join(clashing)}: no edit can be made any more, or none that goes "
            "with the others'."
        )
    return [*lines, *_by_hand(left_out)]


def edit_of(report: Report, ident: str) -> RecommendedFix:
    """Return the fix of this id, recommended or offered. Raises UsageError where none is shown."""
    recommended = report.recommendation
    shown: dict[str, RecommendedFix] = {}
    for fix in (*recommended.fixes, *recommended.also_offered):
        shown.setdefault(fix.fix, fix)
    if ident in shown:
        return shown[ident]
    known = ", ".join(shown) or "none"
    tried = next((trial for trial in report.trials if trial.fix == ident), None)
    if tried is None:
        raise UsageError(f"The report offers no fix {ident!r}; it offers: {known}.")
    reason = clean(tried.reason or "").rstrip(".")
    became = f"came out {tried.verdict}{f': {reason}' if reason else ''}"
    if reason.startswith("not tried"):
        became = f"was {reason}"
    raise UsageError(
        f"The report holds no edit of {ident!r}: it {became}. "
        f"It holds edits or advice of: {known}. For another: run again with --fixes."
    )


def _measured(report: Report, fix: RecommendedFix) -> str:
    """Return one sentence on the fix alone."""
    name = fix_with_settings(fix.fix, fix.settings)
    for trial in report.trials:
        if (trial.fix, trial.settings) == (fix.fix, fix.settings) and trial.speedup is not None:
            shown = speedup(trial.speedup)
            return f"{name} by itself, applied at run time: {shown}, {trial.verdict}."
    joint = any(t.speedup is not None and fix.fix in t.fix.split(" + ") for t in report.trials)
    return f"{name} was not measured{' by itself' if joint else ''}."


def _measured_together(report: Report, fixes: list[RecommendedFix]) -> str:
    """Return one sentence on a trial of just these, with these settings; "" without one."""
    wanted = {fix.fix: fix.settings for fix in fixes}
    for trial in report.trials:
        if trial.speedup is not None and " + " in trial.fix and trial.settings == wanted:
            names = " + ".join(fix_with_settings(fix.fix, fix.settings) for fix in fixes)
            measured = speedup(trial.speedup)
            return f"{names} together, applied at run time: {measured}, {trial.verdict}."
    return ""


def _also(fixes: list[RecommendedFix]) -> list[str]:
    """Return what their edits change beside what they are for."""
    return list(dict.fromkeys(clean(sentence) for fix in fixes for sentence in fix.also_changes))


def _by_hand(fixes: list[RecommendedFix]) -> list[str]:
    lines = ["To be changed by hand:"] if fixes else []
    for fix in fixes:
        lines.append(f"  {fix_with_settings(fix.fix, fix.settings)}")
        lines += [f"    {line}" for line in clean(fix.instruction or "").splitlines()]
    return lines
