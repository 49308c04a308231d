"""The path through the tree as rows of text, and the rule that names the bottleneck."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.advice import catalogue
from torchdoctor.words import Report
from torchdoctor.words.figures import clean, quantity


@dataclass(frozen=True, kw_only=True)
class PathRow:
    """One question of the tree: `figure` and `basis` are ready to print."""

    question: str
    answer: str
    figure: str
    basis: str


def path_rows(report: Report) -> list[PathRow]:
    """The path through the tree."""
    rows = []
    for asked in report.diagnosis.path:
        figure = quantity(asked.value, asked.unit, asked.threshold)
        if asked.threshold is not None:
            figure += f", threshold {quantity(asked.threshold, asked.unit)}"
        basis = clean(asked.metric)
        if asked.source:
            basis += f"; threshold: {clean(asked.source)}"
        rows.append(
            PathRow(question=clean(asked.question), answer=asked.answer, figure=figure, basis=basis)
        )
    return rows


_REPLACED = (
    "The first yes would name the bottleneck; what was tried says that the time is elsewhere."
)
_RULE = "The first yes names the bottleneck, because what comes later may hide behind it."


def path_rule(report: Report) -> str:
    """How the tree chooses, where several of its questions were answered yes; else empty."""
    yes = [asked for asked in report.diagnosis.path if asked.answer == "yes"]
    checks = catalogue.checks().values()
    under = {check.question.text: check.branch for check in checks if check.question}
    if yes and report.ceiling_trials:
        named = under.get(yes[0].question)
        if named is not None and named != report.diagnosis.bottleneck:
            return _REPLACED
    return _RULE if len(yes) > 1 else ""
