"""The sentences of a gate's answer, made of data alone."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchdoctor.reports import remarks, templates
from torchdoctor.reports.gate import figure, named
from torchdoctor.reports.vocabulary import of_unit
from torchdoctor.schema import Evidence
from torchdoctor.schema.figures import clean, percent
from torchdoctor.schema.gate import GateMetric, GateReport

_TO_SPARE = 1.15  # of the time: pairs do not all take as long
_STEP_S = 15.0  # what a budget is rounded up to
_LONG_S = 120.0  # above it to minutes
_STEPS = {"typical-steps": " of the typical {unit}", "all-steps": ""}
ANSWERS = {
    "undecided": "Not decided against {reference}.",
    "interrupted": "It was interrupted: only what was measured until then.",
    "interrupted-before-pairs": "It was interrupted before anything was compared.",
    "sources-changed": "{file}[ and {more:counted more file}] changed while the gate measured: its "
    "pairs are of several programs. Measure again.",
    "because": "{reason}",
    "time-up": "The time was up after {pairs:counted pair} of launches, and {needed} are needed, "
    "which takes about {takes}: give it more ({budget}), or less to do with --steps.",
    "so-far": "So far: {times} the {unit} time {interval}.",
    "worse": "Worse than {reference} in {worse}.",
    "perhaps-slower": "[{times} the {unit} time {interval}][{unknown}] of {reference}, which is "
    "not proven[ (p = {p:.2g}, and a gate fails below {limit:g})].",
    "long-steps-slower": "All {units} together, the long ones included, take "
    "[{times} as long {interval}][{longer}], which a gate does not fail for: look for work that "
    "only some of them do (a checkpoint, a log, an evaluation), or for other load on the machine.",
    "typical-not-proven": "No slow-down of the typical {unit} against {reference} is proven"
    "[: {times} the {unit} time {interval}].",
    "not-seen-well": "No slow-down against {reference} is proven, but [one of up to {blind} would "
    "not][{hardly} would] have been seen in this time[: {times} the {unit} time {interval}].",
    "not-slower": "Not slower than {reference} beyond the tolerance[: {times} the step time "
    "{interval}].",
    "ruled-out": "[A slow-down{of_steps} of more than {blind}][{any_slow_down}{of_steps}] is ruled "
    "out.",
    "pairs-vary": "Pairs vary so much here that even {most}, the most that a gate measures, would "
    "prove only a slow-down of {least_share}: measure on a quieter machine, or accept more with "
    "--tolerance.",
    "pairs-would-prove-size": "About {pairs} pairs would prove a difference of this size ({size}) "
    "four times in five, {measured} were measured: that takes about {takes} ({budget}).",
    "pairs-would-prove-tolerance": "About {pairs} pairs would prove a slow-down of the tolerance "
    "({size}) four times in five, {measured} were measured: that takes about {takes} ({budget}).",
    "slow-down-may-be-load": "It is slower, and the load of others may be all of that: measure it "
    "on a quieter machine.",
    "busy-machine": "Other programs held {held:.1f} of {usable:g} processors meanwhile: times are "
    "those of a busy machine.",
    "allowed-as-told": "{row}, allowed: what the report told of its patch (up to {told_share} "
    "more), and the tolerance.",
    "stored-launches-fail-from": "With the {launches} stored launches, which differ as they do, a "
    "gate fails from {limit:.3f} on.",
}


def with_sentence(report: GateReport) -> GateReport:
    """Return a gate's report with its answer and its remarks in words."""
    words = of_unit(report.unit)
    answer = [
        replace(fact, sentence=_answered(fact, report.metrics, words)) for fact in report.answer
    ]
    worded_remarks = [
        remarks.filled(remark, remarks.SENTENCES[remark.fact], words) for remark in report.remarks
    ]
    doubts = list(dict.fromkeys(remark.sentence for remark in worded_remarks))
    return replace(
        report,
        answer=answer,
        sentence=" ".join(fact.sentence for fact in answer),
        remarks=worded_remarks,
        doubts=doubts or report.doubts,
    )


def _answered(evidence: Evidence, rows: list[GateMetric], words: Mapping[str, str]) -> str:
    template = ANSWERS.get(evidence.fact)
    if template is None:
        return clean(evidence.sentence)
    values = {**words, **evidence.values, **_words(evidence.values, words["unit"])}
    if evidence.fact == "worse":
        values["worse"] = _worse(rows, values["names"], values["with_times"], words["unit"])
    if evidence.fact == "allowed-as-told":
        row = next(row for row in rows if row.name == values["metric"])
        change = _from_to(row, words["unit"])
        values |= {"row": change[:1].upper() + change[1:], "told_share": percent(row.told)}
    return templates.filled(template, values, {})


def _words(values: dict[str, Any], unit: str) -> dict[str, str | None]:
    """Return figures of the answer in words; None where they are not known."""
    has_estimate = values.get("estimate") is not None
    unseen = values.get("unseen")
    words: dict[str, str | None] = {
        "times": f"{values['estimate']:.3f} times" if has_estimate else None,
        "interval": _interval(values["low"], values["high"]) if has_estimate else None,
        "unknown": None if has_estimate else f"The {unit} time is above that",
        "longer": None if has_estimate else "clearly longer",
        "blind": share_text(unseen) if unseen else None,
        "hardly": None if unseen else "hardly any",
        "any_slow_down": None if unseen else "Any slow-down",
        "of_steps": _STEPS.get(values.get("steps", ""), "").format(unit=unit),
    }
    if "needed_s" in values:
        words["takes"], words["budget"] = _time_and_budget(values["needed_s"])
    if "size_share" in values:
        words["size"] = share_text(values["size_share"])
    if "least" in values:
        words["least_share"] = share_text(values["least"])
    return words


def _worse(rows: list[GateMetric], names: list[str], with_times: list[str], unit: str) -> str:
    """Return each row that fails, with what it was, is and may be."""
    failed = [row for row in rows if row.name in names]
    parts = []
    for row in failed:
        part = _from_to(row, unit)
        if row.name in with_times and row.ratio is not None:
            interval = _interval(row.ratio.low, row.ratio.high)
            part += f", {row.ratio.estimate:.3f} times as long {interval}"
        if row.tolerance is not None:
            allowed = f"{percent(row.tolerance)} more"
            if row.unit == "share":
                allowed = f"{100 * row.tolerance:.3g} points of the {unit} more"
            if row.allows_told:
                of_patch = f"what the report told of its patch, {percent(row.told)} more"
                allowed = f"{of_patch}, and {percent(row.tolerance)} beyond"
            part += f", allowed {allowed}"
        parts.append(part)
    return f"{', '.join(named(row, unit) for row in failed)}: {'; '.join(parts)}"


def _from_to(row: GateMetric, unit: str) -> str:
    """Return a row's name and figures: "peak memory 301 MB -> 364 MB"."""
    return f"{named(row, unit)} {figure(row.reference, row, unit)} -> {figure(row.new, row, unit)}"


def _interval(low: float, high: float) -> str:
    return f"(95 % interval {low:.3f} to {high:.3f})"


def _time_and_budget(needed_s: float) -> tuple[str, str]:
    """Return a time that is known roughly ("75 s", "4 min"), and `--budget` with some to spare."""
    with_spare_s = _TO_SPARE * needed_s
    takes = f"{math.ceil(needed_s / 5.0) * 5} s"
    if needed_s > _LONG_S:
        takes = f"{math.ceil(needed_s / 60.0)} min"
    if with_spare_s > _LONG_S:
        return takes, f"--budget {math.ceil(with_spare_s / 60.0)}m"
    return takes, f"--budget {math.ceil(with_spare_s / _STEP_S) * _STEP_S:.0f}s"


def share_text(share: float) -> str:
    """Return a slow-down in percent: "33 %", "1.9 %"."""
    return f"{100 * share:.{0 if share > 0.1 else 1}f} %"
