"""The sentences of what was not tried, refused or left undecided, and why a fix was chosen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from torchdoctor.advice import catalogue
from torchdoctor.reports import remarks, templates
from torchdoctor.schema import (
    Evidence,
    PatchTrial,
    Recommendation,
    RejectedPatch,
    Report,
    Trial,
)

Measured = TypeVar("Measured", Trial, PatchTrial, Recommendation)

REFUSALS = {  # that are of no fix alone
    "for-other-platforms": "It is for {platforms:list| and }. The program is on {on}.",
    "torch-too-old": "The program's torch {torch} has not what it calls: that came with {needed}.",
    "fewer-than-two-gpus": "The program sees fewer than two GPUs.",
    "program-trains": "The program trains: it is for programs that infer.",
    "for-programs-that-infer": "It is for programs that infer.",
    "run-on-cpus-alone": "The model is on a GPU: this code was run on CPUs alone.",
    "compiled-already": "The model is compiled already.",
    "autocast-already": "The model runs under autocast already.",
    "hardly-waits": "The step waits for data only {share:percent} of its time.",
    "wait-is-a-handover": "The step waits {wait_ms:.1f} ms for data, and to hand a batch over "
    "takes as long.",
    "skipped": "left out by --skip",
    "for-programs-that-train": "It is for programs that train.",
    "changes-training": "It changes training: needs --allow-training-changes.",
    "no-finding-calls": "No finding calls for it.",
    "no-setting-worth-trying": "It has no setting worth trying.",
    "nothing-recorded-to-work-on": "Nothing that it works on was recorded.",
    "too-small-a-cost": "It could gain {share:percent} at most: the cost that it treats takes no "
    "more of the time.",
}
CHOICES = {  # why a fix was measured, or was not
    "refused": "refused",
    "failed": "failed",
    "members-gain": "its members gain",
    "further-value": "a value beside those tried first",
    "may-help": "no finding points to it, but it may help",
    "treats-findings": "treats {checks:list}",
    "treats-cost": "treats {check}, {share_of}{share:whole_percent} of the {unit}",
    "not-worth-its-time": "not worth its time",
    "out-of-time": "the time ran out",
    "no-time-left": "the budget left no time for more",
    "interrupted": "interrupted",
    "search-stopped": "the trials were stopped",
    "batch-size-unknown": "not judged: it may change the batch, and batches have no known size",
}
RESULTS = {  # what pairs of launches lack, and why a fix that gains is not recommended
    "long-first-launch": "its first launch takes about {once_s:duration} longer (compiling, or "
    "copying)",
    "blocks-only": "measured in one launch only ({pairs:counted pair} of blocks), not in fresh "
    "launches",
    "one-pair": "one pair of launches only",
    "pairs-at-run-time": "{pairs:counted pair} of the fix at run time, the others of its patch",
    "blocks-count-too": "blocks of one more launch count too",
    "beyond-its-part": "more than the time that it was seen to work on explains ({bound:.2f}x)",
    "gains-little": "gains less than {worth:.0%}",
    "results-changed": "results changed: not recommended",
    "outputs-changed": "results changed: not recommended without --allow-output-changes",
    "results-unknown": "whether results changed is not known: not recommended",
}
PATCHES = {  # why the patch of a set could not be made, or run
    "no-edit-for": "no edit of the source for {fixes:list}",
    "cells-by-hand": "the cells of a notebook are changed by hand",
    "no-certain-edit": "no edit of the source can be made with certainty",
    "no-overlay-for-patch": "the patched source can be run in an overlay alone, and there was none",
}
CEILINGS = {  # why nothing is known of a cost that was to be removed
    "could-not-be-tried": "It could not be tried.",
    "did-not-go-on": "The program did not go on with it: {why:fact}.",
    "failed-after-it": "The program failed after it: {why:fact}.",
    "too-few-blocks": "Too few of its blocks were seen.",
    "other-conditions": "The untouched step took {times:.2f} times as long as when observed.",
    "blocks-not-comparable": "Blocks of this program's steps cannot be compared within one launch: "
    "several processes train, a backward alone separates steps, or these come in kinds without a "
    "regular cycle.",
    "no-time-for-ceiling": "The budget left no time for it.",
}
TRAINING = {  # why nothing came out of advice on training
    "loss-scaled": "The loss is multiplied by a factor that changes (GradScaler).",
    "budget-ended-during": "The budget ended during launch {launch} with it.",
    "whole-budget": "With --fixes {fix} the whole budget is for it.",
}
NO_TRIALS = {  # why no fix was tried
    "too-few-steps": "No fix was tried, because so few steps cannot be compared.",
    "no-fixes-asked-for": "No fix was tried, because --no-fixes was given.",
    "calls-overlap": "No fix was tried, because calls of several threads overlap: what one of them "
    "takes depends on the others.",
    "budget-too-short": "Observing left {left_s:.0f} s of the budget of {budget_s:.0f} s, too "
    "little for a pair of launches: --budget {enough_s}s would do.",
    "trace-not-run": "No fix was tried, because a trace cannot be run.",
    "training-trace-not-run": "No fix was tried, because a trace cannot be run. To measure fixes: "
    "torchdoctor run train.py",
}
SENTENCES = {
    **remarks.LAYERS,
    **remarks.ENDED,
    **remarks.IN_PROGRAM,
    **remarks.NUMERICS,
    **REFUSALS,
    **CHOICES,
    **RESULTS,
    **PATCHES,
    **CEILINGS,
    **TRAINING,
    **NO_TRIALS,
}


def with_reasons(report: Report, words: Mapping[str, str], cwd: str) -> Report:
    """Return the report with the reasons of all that was tried, or was not, in words."""

    def told(evidence: Evidence | None, fixes: Iterable[str] = ()) -> Evidence | None:
        return None if evidence is None else _told(evidence, fixes, words, cwd)

    def told_all(facts: Sequence[Evidence], fixes: Iterable[str] = ()) -> list[Evidence]:
        return [_told(evidence, fixes, words, cwd) for evidence in facts]

    trials = []
    for trial in report.trials:
        why = told_all(trial.why, trial.fixes)
        choice = told(trial.choice)
        reason = joined(why) or trial.reason
        because = choice.sentence if choice is not None else trial.because
        told_trial = replace(trial, why=why, choice=choice, reason=reason, because=because)
        trials.append(_with_numerics(told_trial, words, cwd))
    ceilings = []
    for ceiling in report.ceiling_trials:
        ended = told(ceiling.why, [ceiling.ceiling])
        reason = ended.sentence if ended is not None else ceiling.reason
        ceilings.append(replace(ceiling, why=ended, reason=reason))
    training = []
    for advice in report.training_trials:
        why = told_all(advice.why, [advice.fix])
        sentence = " ".join(_whole(evidence.sentence) for evidence in why) or advice.sentence
        training.append(replace(advice, why=why, sentence=sentence))
    no_trials = told(report.no_trials)
    return replace(
        report,
        trials=trials,
        ceiling_trials=ceilings,
        training_trials=training,
        no_trials=no_trials,
        no_trials_reason=no_trials.sentence if no_trials is not None else report.no_trials_reason,
        recommendation=_with_patches(report.recommendation, words, cwd),
    )


def joined(facts: Sequence[Evidence]) -> str:
    """Return facts in words as one reason; "" of none."""
    sentences = [evidence.sentence for evidence in facts]
    return "; ".join([*(text.rstrip(".") for text in sentences[:-1]), *sentences[-1:]])


def refusal(evidence: Evidence, fix: str) -> str:
    """Return why a fix refuses a program in words, where there is no report."""
    return _told(evidence, [fix], {}, "").sentence


def _with_patches(
    recommendation: Recommendation, words: Mapping[str, str], cwd: str
) -> Recommendation:
    """Return the recommendation with the reasons of its rejected patches in words."""

    def worded(rejected: RejectedPatch) -> RejectedPatch:
        if rejected.why is None:
            return rejected
        why = _told(rejected.why, rejected.fixes, words, cwd)
        return replace(rejected, why=why, detail=why.sentence)

    patches = [worded(rejected) for rejected in recommendation.rejected_patches]
    trial = recommendation.patch_trial
    if trial is not None:
        trial = _with_numerics(trial, words, cwd)
    with_trials = replace(recommendation, rejected_patches=patches, patch_trial=trial)
    return _with_numerics(with_trials, words, cwd)


def _with_numerics(measured: Measured, words: Mapping[str, str], cwd: str) -> Measured:
    """Return what was measured with the words on whether training stayed the same."""
    if measured.numerics_why is None:
        return measured  # of an earlier version, whose words stay as they are
    why = _told(measured.numerics_why, (), words, cwd)
    reason = why.sentence or measured.numerics_reason
    return replace(measured, numerics_why=why, numerics_reason=reason)


def _told(evidence: Evidence, fixes: Iterable[str], words: Mapping[str, str], cwd: str) -> Evidence:
    """Return a fact with its sentence, by a template of these fixes or one that all share."""
    sentences = dict(SENTENCES)
    for ident in fixes:
        spec = catalogue.fixes().get(ident) or catalogue.ceilings().get(ident)
        if spec is not None:
            sentences.update(spec.sentences)
    template = sentences.get(evidence.fact)
    if template is None or evidence.sentence:
        return evidence  # one of another version keeps the sentence that it is
    values = {
        **words,
        **evidence.values,
        "share": evidence.share,
        "location": evidence.location,
    }
    return replace(evidence, sentence=templates.filled(template, values, sentences, cwd))


def _whole(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
