"""What a report tells, by the names of its facts: tests hold on to these, not to the words."""

from __future__ import annotations

from typing import Any

from torchdoctor.advice import catalogue
from torchdoctor.schema import (
    Diagnosis,
    Evidence,
    Refused,
    Report,
    TrainingTrial,
    Trial,
    TriedCeiling,
)


def remarked(report: Report) -> dict[str, dict[str, Any]]:
    """Return what weakens the report: each remark's values by the name of its fact."""
    return {remark.fact: remark.values for remark in report.remarks}


def beware(report: Report) -> set[str]:
    """Return the facts of the remarks that may change a decision."""
    return {remark.fact for remark in report.remarks if remark.severity == "beware"}


def facts_of(report: Report, check: str) -> dict[str, dict[str, Any]]:
    """Return what a finding rests on: each fact's values by its name; nothing: not found."""
    return {
        evidence.fact: evidence.values
        for finding in report.diagnosis.findings
        if finding.check == check
        for evidence in finding.evidence
    }


def why(row: Trial | TriedCeiling | TrainingTrial | Refused) -> list[str]:
    """Return the facts that explain what became of a fix or a removed cost."""
    return [evidence.fact for evidence in _facts_of_row(row)]


def quoted(row: Trial | TriedCeiling | TrainingTrial | Refused) -> list[str]:
    """Return what a program, a fix in it or a library said, of the facts that explain a row."""
    told = [evidence.values for evidence in _facts_of_row(row)]
    return [values["message"] for values in told if "message" in values]


def _facts_of_row(row: Trial | TriedCeiling | TrainingTrial | Refused) -> list[Evidence]:
    facts = row.why if isinstance(row.why, list) else [row.why]
    return [evidence for evidence in facts if evidence is not None]


def why_unknown(report: Report) -> str | None:
    """Return the fact for which nothing is known of where the time goes; None: it is known."""
    why = report.diagnosis.verdict.why
    return None if why is None else why.fact


def answers(diagnosis: Diagnosis) -> dict[str, str]:
    """Return what the questions of the tree were answered with, by the check that asks each."""
    asked_by = {
        check.question.text: ident
        for ident, check in catalogue.checks().items()
        if check.question is not None
    }
    return {  # the last question of the tree is no check's: it keeps its text
        asked_by.get(question.question, question.question): question.answer
        for question in diagnosis.path
    }
