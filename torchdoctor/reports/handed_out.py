"""What is handed out to be applied: its proof, its commands, and the patches that were rejected."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchdoctor.queries.outcomes import is_proven
from torchdoctor.reports import wording
from torchdoctor.reports.trial_rows import CORRECTED, not_tried, training, verdict_of
from torchdoctor.reports.vocabulary import compared
from torchdoctor.schema import (
    FixSet,
    Interval,
    PatchTrial,
    RecommendedFix,
    RejectedPatch,
    Report,
    set_of,
)
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import (
    clean,
    counted,
    fix_with_settings,
    fixes_alone,
    fixes_with_settings,
    memory,
    relative,
    speedup,
    speedup_parts,
)
from torchdoctor.schema.trials import NO_TIME_LEFT

Settings = Mapping[str, Mapping[str, Any]]  # of each fix of a set, by its id

_LONGEST_DETAIL = 200  # characters of an error
_TRAINING = {
    "identical": "{compared} the same",
    "rounding": "{compared} the same but for rounding",
    "seed noise": "{compared} within seed noise",
    "same decisions": "the same decisions",
    "changed": "{compared} changed",
    "not known": "whether {compared} {stay} the same is not known",
}
_APPLY_IN = "Apply it in {}: git apply, or patch -p1."
_GIT = 'A "git apply" behind this pipe ends with "No valid patches in input": that is all it means.'


@dataclass(frozen=True, kw_only=True)
class PatchRun:
    """How the program ran with its source edited, against the untouched one."""

    speedup: Interval
    pairs: int
    numerics: str | None

    @property
    def proven(self) -> bool:
        """Return True if the edited program is proven to be faster."""
        return is_proven(self.speedup, self.pairs)


@dataclass(frozen=True, kw_only=True)
class PatchCommand:
    """Shell commands of one diff."""

    show: str  # prints it
    apply: str | None  # None: nothing has proven the edited program to be faster
    tried: bool  # the edited program ran

    @property
    def title(self) -> str:
        """Return what stands before the command."""
        if self.apply is not None:
            return "Apply it:"
        how = "with no gain proven as a patch" if self.tried else "not tried as a patch"
        return f"As code, {how}:"


def _patched_set(report: Report) -> FixSet:
    """Return the fixes that the recommended patch makes permanent."""
    recommended = report.recommendation
    named = recommended.patch_fixes or [fix.fix for fix in recommended.fixes]
    return set_of(recommended.fixes).limited_to(named)


def patch_run(report: Report, wanted: FixSet) -> PatchRun | None:
    """Return how the program ran with the edits of just these fixes; None: it never did."""
    recommended = report.recommendation
    trial = report.recommendation.patch_trial
    if wanted and wanted == _patched_set(report):
        if trial is not None and trial.speedup is not None:
            return PatchRun(speedup=trial.speedup, pairs=trial.pairs, numerics=trial.numerics)
        if recommended.handed_out == "patch" and recommended.speedup is not None:
            pairs = recommended.pairs
            numerics = recommended.numerics
            return PatchRun(speedup=recommended.speedup, pairs=pairs, numerics=numerics)
    for row in report.trials:
        if row.patched and row.speedup is not None and row.fixes == wanted:
            return PatchRun(speedup=row.speedup, pairs=row.pairs, numerics=row.numerics)
    return None


def rejected_patches(report: Report) -> list[RejectedPatch]:
    """Return the patches that were rejected; of an older report, by how its patch ran."""
    recommended = report.recommendation
    trial = report.recommendation.patch_trial
    if recommended.handed_out is not None or recommended.rejected_patches or trial is None:
        return recommended.rejected_patches
    problem = _problem_of_older(trial, recommended.numerics)
    if problem is None:
        return []
    detail = trial.numerics_reason if problem == "changes-training" else trial.reason
    return [
        RejectedPatch(
            fixes=_patched_set(report),
            problem=problem,
            detail=detail,
            speedup=trial.speedup,
            pairs=trial.pairs,
        )
    ]


def _problem_of_older(trial: PatchTrial, numerics: str | None) -> str | None:
    if trial.speedup is not None and trial.speedup.high < 1:
        return "slower"
    if trial.numerics == "changed" and numerics != "changed":
        return "changes-training"
    launched = trial.numerics is not None  # there is none of a patch that was not launched
    was_tried = trial.why is not None and trial.why.fact != NO_TIME_LEFT
    failed = trial.speedup is None and was_tried
    return "failed" if launched and failed else None


def problem_of_patch(report: Report, wanted: FixSet) -> RejectedPatch | None:
    """Return the rejected patch for which the edits of these fixes are not to be applied.

    Edits that failed or changed training do so beside further edits as well, unless just these
    ran together and gained.
    """
    run = patch_run(report, wanted)
    if run is not None and run.proven and run.numerics != "changed":
        return None
    for rejected in rejected_patches(report):
        if rejected.problem in ("lacks-edit", "not-tried") or not rejected.fixes:
            continue
        if rejected.fixes == wanted:
            return rejected
        contained = all(wanted.get(fix) == values for fix, values in rejected.fixes.items())
        if contained and rejected.problem != "slower":
            return rejected
    return None


def rejected_sentence(rejected: RejectedPatch, with_settings: bool = True) -> str:
    """Return what was tried as a patch and how it came out, or why it was not tried."""
    fixes = rejected.fixes
    names = fixes_with_settings(fixes) if with_settings else fixes_alone(fixes)
    detail = _last_line(rejected.detail)
    if rejected.problem == "lacks-edit":
        lacking = _lacking(rejected)
        return f"No patch could be made of {names}{lacking}."
    if rejected.problem == "not-tried":
        return f"A patch of {names} was not tried: {detail}."
    pairs = counted(rejected.pairs, "pair")
    figures = f": {speedup(rejected.speedup)} in {pairs} of launches" if rejected.speedup else ""
    if rejected.problem == "slower":
        return f"The patch of {names} made the program slower{figures}."
    how = "changed results" if rejected.problem == "changes-training" else "failed when it ran"
    reason = f": {detail.rstrip('.')}" if detail else ""
    return f"The patch of {names} {how}{reason}."


def _lacking(rejected: RejectedPatch) -> str:
    """Return which fix of a set has no edit, to stand behind a sentence."""
    why = rejected.why
    if why is None or why.fact != "no-edit-for" or len(rejected.fixes) < 2:
        return ""
    return f", because {', '.join(why.values['fixes'])} has no certain edit"


def _last_line(detail: str | None) -> str:
    """Return the exception of an error's text, else its last line."""
    text = (detail or "").strip()
    lines = [line.strip() for line in text.splitlines()]
    return clean(wording.exception_line(text) or (lines[-1] if lines else ""))[:_LONGEST_DETAIL]


def gain(interval: Interval | None, pairs: int) -> str:
    """Return "1.71x faster (1.56-1.99)" of what is proven, else the figures without that word."""
    if is_proven(interval, pairs):
        estimate, bounds = speedup_parts(interval)
        return f"{estimate} faster {bounds}"
    figures = speedup(interval)
    looks_faster = interval is not None and interval.low > 1
    return f"{figures}, which looks faster and is not proven" if looks_faster else figures


def as_fast(interval: Interval | None) -> str:
    """Return "1.71x as fast (1.56-1.99)", of what is no gain by itself."""
    estimate, bounds = speedup_parts(interval)
    return f"{estimate} as fast {bounds}"


def training_words(report: Report, numerics: str | None) -> str:
    """Return whether training, or outputs, stayed the same, within a sentence."""
    words = training(numerics)
    stay = "stay" if report.kind == "inference" else "stays"
    text = _TRAINING.get(words, f"{{compared}} {words}")
    return text.format(compared=compared(report), stay=stay)


def ran(report: Report, run: PatchRun) -> str:
    """Return how a patch ran, as a sentence."""
    parts = [gain(run.speedup, run.pairs), f"{counted(run.pairs, 'pair')} of launches"]
    if training(run.numerics) == CORRECTED:
        parts[0] = f"it corrects {compared(report)}, which were wrong; {as_fast(run.speedup)}"
    else:
        parts.append(training_words(report, run.numerics))
    return f"This patch was applied to a copy and ran: {', '.join(parts)}."


def proof(report: Report, fixes: Sequence[RecommendedFix]) -> list[str]:
    """Return what was proven of the edits of these fixes: said before a file is changed."""
    wanted = set_of(fixes)
    problem = problem_of_patch(report, wanted)
    run = patch_run(report, wanted)
    if problem is not None:
        return [rejected_sentence(problem)]
    if run is not None:
        return [ran(report, run)]
    trial = report.recommendation.patch_trial
    why = ""
    if wanted == _patched_set(report) and trial is not None and trial.reason:
        why = f": {clean(trial.reason).rstrip('.')}"
    return [f"This patch was not tried{why}.", *measured_at_run_time(report, fixes)]


def applied_sets(report: Report) -> list[RecommendedFix]:
    """Return the fixes that the recommended patch makes permanent, in their order."""
    wanted = _patched_set(report)
    return [fix for fix in report.recommendation.fixes if fix.fix in wanted]


def together(report: Report) -> list[str]:
    """Return what the recommended fixes do all together, and how their patch ran."""
    recommended = report.recommendation
    if not recommended.fixes:
        return [rejected_sentence(rejected) for rejected in rejected_patches(report)]
    names = fixes_with_settings(set_of(recommended.fixes))
    more = [wording.beyond_its_part(recommended)]
    if recommended.patch:
        more += proof(report, applied_sets(report))[:1]
    elif recommended.handed_out == "by-hand":
        more.append("No patch of them is handed out: change the code by hand.")
    if left_out := {fix.fix for fix in recommended.fixes} - _patched_set(report).keys():
        more.append(f"The patch leaves out {', '.join(sorted(left_out))}.")
    more += [rejected_sentence(rejected) for rejected in rejected_patches(report)]
    more = list(dict.fromkeys(more))
    if recommended.speedup is None:
        several = len(recommended.fixes) > 1
        return [f"{names}: not measured all together.", *more] if several else more
    parts = [f"{speedup(recommended.speedup)} against the untouched program"]
    if recommended.pairs:
        beside = " side by side" if report.baseline.measured == "side by side" else ""
        parts.append(f"{counted(recommended.pairs, 'pair')} of launches{beside}")
    parts.append(f"{compared(report)}: {training(recommended.numerics)}")
    if recommended.peak_memory_bytes is not None:
        before = report.baseline.peak_memory_bytes
        change = f" (was {memory(before)})" if before is not None else ""
        parts.append(f"peak memory {memory(recommended.peak_memory_bytes)}{change}")
    return [f"{names}: {'; '.join(parts)}.", *more]


def patch_commands(
    report: Report, fixes: Sequence[RecommendedFix], folder: str = ""
) -> list[PatchCommand]:
    """Return the commands of these fixes' edits, from the reader's folder; of none rejected."""
    if not report.run_folder:
        return []
    print_it = f"torchdoctor patch {shlex.quote(relative(report.run_folder, folder))}"
    recommended = report.recommendation
    if fixes and list(fixes) == recommended.fixes:
        edited = applied_sets(report) if recommended.patch else []
        return _command(report, edited, print_it)
    joint = [fix for fix in fixes if fix.standing == "together"]
    # Without the one that has no edit the others are not what was measured.
    whole = bool(joint) and all(fix.edit for fix in joint)
    sets = [joint] * whole + [[fix] for fix in fixes if fix.edit and fix not in joint]
    commands = []
    for edited in sets:
        options = "".join(f" --fixes {shlex.quote(fix.fix)}" for fix in edited)
        commands += _command(report, edited, print_it + options)
    return commands


def _command(report: Report, fixes: Sequence[RecommendedFix], show: str) -> list[PatchCommand]:
    wanted = set_of(fixes)
    if not fixes or problem_of_patch(report, wanted) is not None:
        return []
    run = patch_run(report, wanted)
    apply = f"{show} --apply" if run is not None and run.proven else None
    return [PatchCommand(show=show, apply=apply, tried=run is not None)]


def remarks(report: Report, applied: bool = False) -> list[str]:
    """Return lines for the user, in order; never part of the diff, which may be `applied`."""
    recommended = report.recommendation
    beside = [fix.fix for fix in recommended.also_offered if fix.edit]
    elsewhere = [f"Other edits, one with each --fixes ID: {', '.join(beside)}."] if beside else []
    if not recommended.fixes:
        nothing = "The report recommends no fix: there is no diff, and nothing to apply."
        return [nothing if applied else f"{nothing} {_GIT}", *elsewhere]
    folder = recommended.patch_folder or report.workload.cwd
    apply = "" if applied else _APPLY_IN.format(clean(folder))
    if not recommended.patch:
        apply = "There is no patch of the recommended fixes, and nothing to apply."
        apply += "" if applied else f" {_GIT}"
    rejections = [
        rejected_sentence(rejected_patch)
        for rejected_patch in rejected_patches(report)
        if not recommended.patch
    ]
    made = recommended.patch_fixes if recommended.patch else []
    return [*filter(None, [apply]), *rejections, *_rest(recommended.fixes, made), *elsewhere]


def remarks_on(fixes: list[RecommendedFix], made: list[str], folder: str | None) -> list[str]:
    """Return where to apply the diff of these fixes, and what it lacks."""
    lines = [_APPLY_IN.format(clean(folder))] if folder is not None else []
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
    shown_ids = ", ".join(shown) or "none"
    trials = [trial for trial in report.trials if trial.fixes.only == ident]
    # Of several values the one that was measured best speaks for the fix.
    tried = max(trials, key=lambda trial: trial.pairs, default=None)
    if tried is None:
        raise UsageError(f"The report offers no fix {ident!r}; it offers: {shown_ids}.")
    reason = clean(tried.reason or "").rstrip(".")
    subject = fixes_with_settings(tried.fixes) if tried.pairs else "it"
    became = f"{subject} came out {tried.verdict}{f': {reason}' if reason else ''}"
    if not_tried(tried):
        became = f"it was not tried: {reason}"
    raise UsageError(
        f"The report holds no edit of {ident!r}: {became}. "
        f"It holds edits or advice of: {shown_ids}. For another: run again with --fixes."
    )


def measured_at_run_time(report: Report, fixes: Sequence[RecommendedFix]) -> list[str]:
    """Return what fixes switched on at run time gained: just these, else each of them alone."""
    if not fixes:  # a report whose patch is of fixes that it does not hold
        return []
    wanted = set_of(fixes)
    names = fixes_with_settings(wanted)
    first = fixes[0]
    several = len(fixes) > 1
    trials = [trial for trial in report.trials if trial.speedup is not None]
    for trial in trials:
        if not trial.patched and trial.fixes == wanted:
            how = f"{'together' if several else 'by itself'}, applied at run time"
            return [f"{names} {how}: {speedup(trial.speedup)}, {verdict_of(trial)}."]
    if several:
        alone = [line for fix in fixes for line in measured_at_run_time(report, [fix])]
        return [*alone, "They were not measured together."]
    in_a_set = any(first.fix in trial.fixes for trial in trials)
    tried = [trial for trial in trials if trial.fixes.only == first.fix]
    values = (f"{fixes_with_settings(trial.fixes)}: {speedup(trial.speedup)}" for trial in tried)
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
