"""What goes with the patch: where to apply it, what it was measured at, what it leaves out."""

from torchdoctor.reports import wording
from torchdoctor.words import RecommendedFix, Report
from torchdoctor.words.errors import UsageError
from torchdoctor.words.figures import clean, fix_with_settings, speedup

_APPLY = "Apply it in {}: git apply, or patch -p1."
_GIT = 'A "git apply" behind this pipe ends with "No valid patches in input": that is all it means.'


def remarks(report: Report, applied: bool = False) -> list[str]:
    """Return lines for the user, in order; never part of the diff, which may be `applied`."""
    recommended = report.recommendation
    beside = [fix.fix for fix in recommended.also_offered if fix.edit]
    elsewhere = [f"Other edits, one with each --fix ID: {', '.join(beside)}."] if beside else []
    if not recommended.fixes:
        nothing = "The report recommends no fix: there is no diff, and nothing to apply."
        return [nothing if applied else f"{nothing} {_GIT}", *elsewhere]
    folder = recommended.patch_folder or report.workload.cwd
    apply = "No edit could be made for certain: there is nothing to apply."
    if recommended.patch:
        apply = "" if applied else _APPLY.format(clean(folder))
    elif not applied:
        apply = f"{apply} {_GIT}"
    rest = _rest(recommended.fixes, recommended.patch_fixes)
    return [*filter(None, (apply, wording.patch(report))), *rest, *elsewhere]


def remarks_on(
    report: Report, fixes: list[RecommendedFix], made: list[str], folder: str | None
) -> list[str]:
    """Return what was measured of fixes, where to apply their diff, and what it lacks."""
    lines = [_APPLY.format(clean(folder))] if folder is not None else []
    lines += _measured(report, fixes)
    if clashing := [fix.fix for fix in fixes if fix.edit and fix.fix not in made]:
        lines.append(
            f"Without {', '.join(clashing)}: no edit can be made any more, or none that goes "
            "with the others'."
        )
    return lines + _rest(fixes, made)


def edit_of(report: Report, ident: str) -> RecommendedFix:
    """Return the fix of this id, recommended or offered. Raises UsageError where none is shown."""
    recommended = report.recommendation
    shown: dict[str, RecommendedFix] = {}
    for fix in (*recommended.fixes, *recommended.also_offered):
        shown.setdefault(fix.fix, fix)
    if ident in shown:
        return shown[ident]
    known = ", ".join(shown) or "none"
    trials = [trial for trial in report.trials if trial.fix == ident]
    # Of several values the one that was measured best speaks for the fix.
    tried = max(trials, key=lambda trial: trial.pairs, default=None)
    if tried is None:
        raise UsageError(f"The report offers no fix {ident!r}; it offers: {known}.")
    reason = clean(tried.reason or "").rstrip(".")
    subject = fix_with_settings(ident, tried.settings) if tried.pairs else "it"
    became = f"{subject} came out {tried.verdict}{f': {reason}' if reason else ''}"
    if reason.startswith("not tried"):
        became = f"it was {reason}"
    raise UsageError(
        f"The report holds no edit of {ident!r}: {became}. "
        f"It holds edits or advice of: {known}. For another: run again with --fixes."
    )


def _measured(report: Report, fixes: list[RecommendedFix]) -> list[str]:
    """Return what was measured of just these fixes with these settings, else of each alone."""
    names = " + ".join(fix_with_settings(fix.fix, fix.settings) for fix in fixes)
    first, several = fixes[0], len(fixes) > 1
    wanted = {fix.fix: fix.settings for fix in fixes} if several else first.settings
    trials = [trial for trial in report.trials if trial.speedup is not None]
    for trial in trials:
        of_these = " + " in trial.fix if several else trial.fix == first.fix
        if of_these and trial.settings == wanted:
            how = f"{'together' if several else 'by itself'}, applied at run time"
            return [f"{names} {how}: {speedup(trial.speedup)}, {trial.verdict}."]
    if several:
        alone = [line for fix in fixes for line in _measured(report, [fix])]
        return [*alone, "They were not measured together."]
    in_a_set = any(first.fix in trial.fix.split(" + ") for trial in trials)
    tried = [trial for trial in trials if trial.fix == first.fix]
    values = (f"{fix_with_settings(x.fix, x.settings)}: {speedup(x.speedup)}" for x in tried)
    other = f" Other values were: {'; '.join(values)}." if tried else ""
    return [f"{names} was not measured{' by itself' * in_a_set}.{other}"]


def _rest(fixes: list[RecommendedFix], made: list[str]) -> list[str]:
    """Return what the edits change beside what they are for, and what has none."""
    edited = [fix for fix in fixes if fix.fix in made]
    lines = list(dict.fromkeys(clean(text) for fix in edited for text in fix.also_changes))
    by_hand = [fix for fix in fixes if fix not in edited]
    lines += ["To be changed by hand:"] if by_hand else []
    for fix in by_hand:
        lines.append(f"  {fix_with_settings(fix.fix, fix.settings)}")
        lines += [f"    {line}" for line in clean(fix.instruction or "").splitlines()]
    return lines
