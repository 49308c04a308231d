"""The sentences of a comparison: its answer and what weakens it, made of data alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchdoctor.reports import templates
from torchdoctor.reports.remarks import FILES
from torchdoctor.reports.vocabulary import of_unit
from torchdoctor.schema import Evidence, Interval, Remark
from torchdoctor.schema.comparison import ComparedSide, Comparison
from torchdoctor.schema.figures import (
    PHASE_LABELS,
    SHARE_LABELS,
    clean,
    ratio,
    says_something,
    seconds,
    speedup,
    time_and_unit,
)

_MOST, _MORE_THAN_ALL = 0.5, 1.05  # of the change
_LABELS = {**SHARE_LABELS, **PHASE_LABELS}
_UNPROVEN = "({times}[, 95 % interval of the speed-up {interval}])."
ANSWERS = {
    "no-difference": "No difference: B's {unit} takes as long as A's ({times}).",
    "launches-vary": "No difference is proven: the launches vary too much " + _UNPROVEN,
    "within-spread": "No difference is proven: each side's {unit} time lies within the "
    "other's "
    "spread " + _UNPROVEN,
    "other-programs": "No difference is proven: other programs kept {a_busy:.1f} of {usable:g} "
    "CPUs busy in A and {b_busy:.1f} in B " + _UNPROVEN,
    "changed": "B is {times_as} per {unit} ({times}).",
    "changed-by-launches": "B is {interval} {verdict} per {unit} ({times}).",
    "changed-in-one-launch": "B looked {times_as} per {unit} in one launch of each ({times}).",
    "part-changed": "{Much} lies in {part} ({signed}).",
    "new-finding": "New finding: {check}[ at {place}].",
    "crossed-threshold": "{check}[ at {place}] crossed its threshold.",
    "finding-gone": "{check}[ at {place}] is gone.",
    "fell-below-threshold": "{check}[ at {place}] fell below its threshold.",
    "not-the-same-workload": "Not the same workload.",
    "another-script": "Another script ({a} -> {b}).",
    "another-condition": "Another {name} ({a} -> {b}).",
    "another-number-of-processes": "Another number of processes ({a} -> {b}).",
    "another-batch-size": "Another batch size ({a:.3g} -> {b:.3g} samples a {unit}).",
    "no-ratio": "A's {unit} takes {a_s:seconds}, B's {b_s:seconds}. Times of different "
    "workloads cannot be compared, so no ratio is given.",
    "per-sample": "A's {unit} takes {a_s:seconds}, B's {b_s:seconds}; per sample B is {times_as}.",
    "calls-take-as-long": "Compared per call, as steps are not marked in both: the calls of "
    "{common:counted {kind}} that both ran take as long in B as in A.",
    "calls-changed": "Compared per call, as steps are not marked in both: the calls of "
    "{common:counted {kind}} that both ran take {times_as}.",
}
BASES = {  # what a step time and its spread are of
    "median-of-steps": "median of {steps:counted {unit}, {units}}, spread: 10 to 90 %",
    "mean-of-steps": "mean of {steps:counted {unit}, {units}} (median {median_s:seconds}), spread: "
    "10 to 90 %",
    "mean-of-launches": "mean of {launches} launches, spread: smallest to largest",
    "mean-of-traced-steps": "mean of {steps:counted step}",
    "whole-trace": "the whole trace",
}
REMARKS = {
    "was-interrupted": "{side} was interrupted: the measurements after that are missing.",
    "other-versions": "A and B were made by different versions of torchdoctor ({a} and {b}), which "
    "may measure and diagnose differently.",
    "other-times": "The two ran at different times, perhaps beside other programs. `torchdoctor "
    "gate` gives stronger evidence, because it measures both in turns.",
    "timed-without-profiler": "{side} was timed without the profiler, which slows the host of the "
    "other down. Facts that only {side} has (settings, loaders, sensors) are left out.",
    "timed-by-profiled-steps": "The other is a trace, so {side}'s time is that of its "
    "profiled {units}. Facts that only {side} has (settings, loaders, sensors) are left out.",
    "other-kinds-of-step": "A's launches give their {a} {unit} and B's their {b}, so the means "
    "are compared, and no interval can be given.",
    "no-launches": "No interval can be given, because A or B holds no launches to compare.",
    "one-recording": "No interval can be given, because a trace is one recording.",
    "profiled-alone": "{profiled} was profiled and {other} was not: what only a profile shows does "
    "not count as a change.",
    "profiled-alone-by-phases": "{profiled} was profiled and {other} was not: what only a profile "
    "shows does not count as a change, and time is compared by phases.",
    "parts-of-another-launch": "{side}'s parts and findings are of the observed launch, whose "
    "{units} took {parts_s:seconds} on average; the compared ones took {step_s:seconds}.",
    "other-ranks": "{a:counted rank} against {b:counted rank}: that alone changes collectives and "
    "steps.",
    "change-not-located": "A or B does not say where its time goes: the change cannot be located.",
    "per-call": "Steps are not marked in both, so times are per call and weighted by A's calls: "
    "work that only one of the two does, and waits between calls, are not in the figure.",
}


def with_sentences(comparison: Comparison) -> Comparison:
    """Return a comparison with its answer and its remarks in words."""
    words = of_unit(comparison.unit)
    answer = [replace(fact, sentence=_answered(fact, words)) for fact in comparison.answer]
    remarks = [replace(remark, sentence=_remarked(remark, words)) for remark in comparison.remarks]
    return replace(
        comparison,
        a=_side(comparison.a, words),
        b=_side(comparison.b, words),
        answer=answer,
        remarks=remarks,
        sentence=" ".join(fact.sentence for fact in answer),
        doubts=[remark.sentence for remark in remarks],
    )


def _side(side: ComparedSide, words: Mapping[str, str]) -> ComparedSide:
    """Return a side with what its time is of in words; a step is called as on that side."""
    measured_as = side.measured_as
    if measured_as is None:
        return side
    unit = measured_as.values.get("unit")
    own_words = words if unit is None else of_unit(unit)
    values = {**own_words, **measured_as.values}
    basis = templates.filled(BASES[measured_as.fact], values, {})
    return replace(side, basis=basis, measured_as=replace(measured_as, sentence=basis))


def _answered(evidence: Evidence, words: Mapping[str, str]) -> str:
    template = ANSWERS.get(evidence.fact)
    if template is None:
        return clean(evidence.sentence)
    return templates.filled(template, {**words, **evidence.values, **_words(evidence.values)}, {})


def _words(values: dict[str, Any]) -> dict[str, str | None]:
    """Return figures of the answer in words."""
    words: dict[str, str | None] = {"interval": _interval(values)}
    if "a_s" in values:
        words["times"] = _from_to(values["a_s"], values["b_s"])
    if "ratio" in values:
        words["times_as"] = _times(values["ratio"])
    if "part" in values:
        change_s = values["change_s"]
        words["part"] = _LABELS.get(values["part"], values["part"])
        words["signed"] = f"{'-' if change_s < 0 else '+'}{seconds(abs(change_s))}"
        words["Much"] = _much(values["of_all"])
    return words


def _interval(values: dict[str, Any]) -> str | None:
    if values.get("low") is None:
        return None
    interval = Interval(low=values["low"], estimate=values["estimate"], high=values["high"])
    return speedup(interval) if says_something(interval) else None


def _much(of_all: float) -> str:
    if of_all > _MORE_THAN_ALL:
        return "More than the whole change"
    return "Most of the change" if of_all >= _MOST else "The largest part of the change"


def _times(ratio_of_times: float) -> str:
    word = "slower" if ratio_of_times > 1 else "faster"
    return f"{ratio(max(ratio_of_times, 1 / ratio_of_times))}x {word}"


def _from_to(old_s: float | None, new_s: float | None) -> str:
    """Return two times, the unit said once where it is the same: "12.1 -> 14.3 ms"."""
    figure, unit = time_and_unit(old_s)
    is_same_unit = unit is not None and unit == time_and_unit(new_s)[1]
    return f"{figure if is_same_unit else seconds(old_s)} -> {seconds(new_s)}"


def _remarked(remark: Remark, words: Mapping[str, str]) -> str:
    template = REMARKS.get(remark.fact) or FILES.get(remark.fact)
    if template is None:
        return clean(remark.sentence)
    sentence = templates.filled(template, {**words, **remark.values}, {})
    return f"{remark.of}: {sentence}" if remark.of else sentence
