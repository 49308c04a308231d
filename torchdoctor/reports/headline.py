"""The headline of a report: what slows training, what helps, and what weakens the answer."""

from __future__ import annotations

from torchdoctor.facts.lookup import is_first_look
from torchdoctor.facts.other_load import load_of
from torchdoctor.facts.undecided import leader, looked_faster
from torchdoctor.reports.wording import at_most, proven_faster, untried
from torchdoctor.words import Interval, RecommendedFix, Report, Trial
from torchdoctor.words.figures import clean, fix_with_settings, ratio, speedup_words

_TRAINING_CLAUSE = {
    "identical": ", and training stays the same",
    "within-rounding": ", and training stays the same within rounding",
    "within-seed-noise": ", and training stays within what another seed changes",
    "changed": ", but training changes",
    "not-comparable": "; whether training stays the same could not be compared",
}

_ANYTHING = 4.0  # times the lower bound: an interval that says nothing
_BRANCH_SENTENCES = {
    "data_loader": "Training waits for data.",
    "memcpy": "Copies between host and device hold the step up.",
    "communication": "Communication between devices holds the step up.",
    "gpu": "The GPU's own work fills the step.",
    "cpu": "Work on the CPU holds the step up.",
    "other": "Something outside the step's own work holds it up.",
}


def verdict(report: Report) -> str:
    """What slows training, what helps, and whether the run was cut short."""
    cut = "The run was interrupted: this is what was measured until then."
    parts = cause(report), weakened(report), gain(report), cut * report.interrupted
    return " ".join(filter(None, parts))


def cause(report: Report) -> str:
    """What slows training, in one sentence."""
    diagnosis = report.diagnosis
    if diagnosis.bottleneck == "none":
        if any(proven_faster(trial.speedup) for trial in report.trials):
            return "No single bottleneck stands out."
        default = "Nothing to fix: no part of the step stands out."
    else:
        default = _BRANCH_SENTENCES.get(diagnosis.bottleneck, "")
    return clean(diagnosis.sentence.strip()) or default


def weakened(report: Report) -> str:
    """What the observed launch's conditions take from the cause, in one sentence; mostly empty."""
    found, steps = [], report.steps
    if report.diagnosis.bottleneck != "none" and steps is not None and is_first_look(steps):
        found.append(f"{steps.steps} steps alone were measured")
    if load := load_of([report.sensors], report.environment.usable_cpus):
        found.append(f"other programs kept {load} busy")
    return f"Beware: {' and '.join(found)}." if found else ""


def gain(report: Report) -> str:
    """What helps and how much, in one sentence; never "faster" without an interval above 1."""
    fixes, together = report.recommendation.fixes, report.recommendation.speedup
    if fixes and together is not None:
        names = _names(fixes)
        numerics, share = report.recommendation.numerics, at_most(report.recommendation)
        return _gain_of(names, together, numerics, share)
    best = best_trial(report, fixes)
    if best is None or best.speedup is None:
        return _no_gain(report)
    names = fix_with_settings(best.fix, best.settings)
    if not fixes and best.numerics == "not-comparable":
        times, bounds = speedup_words(best.speedup)
        return (
            f"{names} ran {times} faster here ({bounds}){at_most(best)}, but it is not "
            "known yet whether training stays the same: not recommended. More time may tell "
            "(--budget)."
        )
    return _gain_of(names, best.speedup, best.numerics, at_most(best))


def best_trial(report: Report, among: list[RecommendedFix] | None = None) -> Trial | None:
    """The trial with the highest proven lower bound that left training the same, or None."""
    wanted = [(fix.fix, fix.settings) for fix in among or []]
    good = [
        trial
        for trial in report.trials
        if trial.verdict == "faster"
        and trial.speedup is not None
        and proven_faster(trial.speedup)
        and trial.numerics != "changed"
        and (not wanted or (trial.fix, trial.settings) in wanted)
    ]
    return max(good, key=lambda trial: trial.speedup.low if trial.speedup else 0.0, default=None)


def _gain_of(names: str, interval: Interval, numerics: str | None, share: str) -> str:
    times, bounds = speedup_words(interval)
    clause = _TRAINING_CLAUSE.get(numerics or "not-comparable", "")
    if proven_faster(interval):
        return f"With {names} it runs {times} faster here ({bounds}){share}{clause}."
    if interval.high < 1:
        return f"With {names} it runs slower here: {times} ({bounds})."
    return f"With {names} no gain is proven here: {times} ({bounds})."


def _no_gain(report: Report) -> str:
    trials = [t for t in report.trials if t.verdict in ("faster", "same", "slower", "unclear")]
    if trials:
        return _undecided(report, trials) or _none_of(report, trials)
    if report.trials and not report.no_trials_reason:
        refused = sum(trial.verdict == "refused" for trial in report.trials)
        failed = len(report.trials) - refused
        parts = [f"{refused} refused"] * bool(refused) + [f"{failed} failed"] * bool(failed)
        return f"No fix could be measured: {' and '.join(parts)}."
    return untried(report)


def _undecided(report: Report, trials: list[Trial]) -> str:
    """Where the answer is still open, the best of what was seen; empty where it is not."""
    unclear = [t for t in trials if t.verdict == "unclear" and t.numerics != "changed"]
    best = leader(trials)
    more = "" if report.interrupted else " More time may decide it (--budget)."
    if best is not None and best.speedup is not None:
        name = fix_with_settings(best.fix, best.settings)
        if best.pairs < 2:
            return f"No fix is decided yet: {name} was measured once only.{more}"
        if best.speedup.high > _ANYTHING * best.speedup.low:
            span = f"anywhere from {ratio(best.speedup.low)}x to {ratio(best.speedup.high)}x"
            return f"No fix is decided yet: {name} lies {span} after {best.pairs} pairs.{more}"
        found = f"{name} looked {ratio(best.speedup.estimate)}x faster in {best.pairs} pairs"
        return f"No fix is decided yet: {found} of launches, which proves nothing.{more}"
    if looked_faster(trials):
        return f"No fix is decided yet.{more}"
    if unclear and all(t.speedup is None for t in trials):
        ended = "The run was interrupted" if report.interrupted else "The budget ended"
        return f"{ended} before a fix was measured.{more}"
    return ""


def _none_of(report: Report, trials: list[Trial]) -> str:
    measured = {trial.fix for trial in trials if trial.speedup is not None}
    count = f"of the {len(measured)} fixes tried" if len(measured) > 1 else "fix tried"
    if any(proven_faster(trial.speedup) for trial in report.trials):
        return f"No {count} made it faster without changing training."
    if any(t.verdict == "unclear" and t.speedup is not None for t in trials):
        if changing := looked_faster(trials, changed=True):
            best = max(changing, key=lambda t: t.speedup.estimate if t.speedup else 0.0)
            times = ratio(best.speedup.estimate if best.speedup else None)
            name = fix_with_settings(best.fix, best.settings)
            return f"{name} looked {times}x faster, but training changes with it."
        none = f"None {count}" if len(measured) > 1 else "The fix tried"
        looked = "looked faster" if len(measured) > 1 else "did not look faster"
        more = "" if report.interrupted else "; more time may tell (--budget)"
        return f"{none} {looked}, and not all is decided{more}."
    return f"None {count} made it faster." if len(measured) > 1 else "The fix tried did not help."


def _names(fixes: list[RecommendedFix]) -> str:
    names = [fix_with_settings(fix.fix, fix.settings) for fix in fixes]
    if len(fixes) == 1:
        return names[0]
    # One setting says what is meant: `loader-workers` may be none. Several are no headline.
    told = [clean(fix.fix) if "," in name else name for fix, name in zip(fixes, names, strict=True)]
    return f"{', '.join(told[:-1])} and {told[-1]}"
