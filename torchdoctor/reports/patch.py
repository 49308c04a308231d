"""What goes with the patch: where to apply it, what it was measured at, what it leaves out."""

from __future__ import annotations

from torchdoctor.reports import wording
from torchdoctor.reports.trial_rows import TRAINING
from torchdoctor.words import RecommendedFix, Report, Trial
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
    lines = [_APPLY.format(clean(folder))] if recommended.patch else []
    if not recommended.patch:
        lines.append(f"No edit could be made for certain: there is nothing to apply. {_GIT}")
    trial = recommended.patch_trial
    training = TRAINING.get((trial.numerics if trial else "") or "", "not known")
    if measured := wording.patch(report, training):
        lines.append(measured)
    lines += _also([fix for fix in recommended.fixes if fix.fix in recommended.patch_fixes])
    by_hand = [fix for fix in recommended.fixes if fix.fix not in recommended.patch_fixes]
    return [*lines, *_by_hand(by_hand), *elsewhere]


def edit_of(report: Report, ident: str) -> RecommendedFix:
    """Return the fix of this id, recommended or offered beside.

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
    raise UsageError(
        f"The report holds no edit of {ident!r}: it {_became(tried)}. "
        f"It holds edits or advice of: {known}. For another: run again with --fixes."
    )


def _became(tried: Trial) -> str:
    """Return what a fix's row says, behind "it"."""
    reason = clean(tried.reason or "").rstrip(".")
    if reason.startswith("not tried"):
        return f"was {reason}"
    return f"came out {tried.verdict}{f': {reason}' if reason else ''}"


def remarks_on(
    report: Report, fixes: list[RecommendedFix], made: list[str], folder: str | None
) -> list[str]:
    """Return what was measured of these fixes, where to apply their diff and what it lacks.

    Args:
        report: that shows them.
        fixes: all that were asked for.
        made: ids of those in the diff.
        folder: that the diff is to be applied in; None: there is no diff.
    """
    lines = [_APPLY.format(clean(folder))] if folder is not None else []
    together = _measured_together(report, fixes)
    lines += [together] if together else [_measured(report, fix) for fix in fixes]
    if len(fixes) > 1 and not together:
        lines.append("They were not measured together.")
    lines += _also([fix for fix in fixes if fix.fix in made])
    left_out = [fix for fix in fixes if fix.fix not in made]
    clashing = [fix.fix for fix in left_out if fix.edit]
    if clashing:
        lines.append(
            f"Without {', '.join(clashing)}: no edit can be made any more, or none that goes "
            "with the others'."
        )
    return [*lines, *_by_hand(left_out)]


def _measured(report: Report, fix: RecommendedFix) -> str:
    """Return one sentence on the fix alone."""
    name = fix_with_settings(fix.fix, fix.settings)
    trials = [t for t in report.trials if (t.fix, t.settings) == (fix.fix, fix.settings)]
    if trials and trials[0].speedup is not None:
        measured = speedup(trials[0].speedup)
        return f"{name} by itself, applied at run time: {measured}, {trials[0].verdict}."
    with_others = [t for t in report.trials if t.speedup and fix.fix in t.fix.split(" + ")]
    return f"{name} was not measured{' by itself' if with_others else ''}."


def _measured_together(report: Report, fixes: list[RecommendedFix]) -> str | None:
    """Return one sentence on a trial of just these, with these settings; None without one."""
    wanted = {fix.fix: fix.settings for fix in fixes}
    for trial in report.trials:
        if trial.speedup is not None and " + " in trial.fix and trial.settings == wanted:
            names = " + ".join(fix_with_settings(fix.fix, fix.settings) for fix in fixes)
            measured = speedup(trial.speedup)
            return f"{names} together, applied at run time: {measured}, {trial.verdict}."
    return None


def _also(fixes: list[RecommendedFix]) -> list[str]:
    """Return what their edits change beside what they are for."""
    return list(dict.fromkeys(clean(sentence) for fix in fixes for sentence in fix.also_changes))


def _by_hand(fixes: list[RecommendedFix]) -> list[str]:
    lines = ["To be changed by hand:"] if fixes else []
    for fix in fixes:
        lines.append(f"  {fix_with_settings(fix.fix, fix.settings)}")
        lines += [f"    {line}" for line in clean(fix.instruction or "").splitlines()]
    return lines
