"""A diagnosis or a finding as a report words it."""

from __future__ import annotations

from dataclasses import replace

from partial_recordings import recording as partial

from torchdoctor.reports.verdict import with_sentences
from torchdoctor.schema import Diagnosis, Finding, Recording, Report, WorkloadRecord


def in_words(diagnosis: Diagnosis, recording: Recording | None = None) -> Diagnosis:
    """Return the diagnosis with its sentences, as the report of this recording has them."""
    of = recording or partial()
    report = Report(
        workload=WorkloadRecord(command=["train.py"], cwd=of.workload.cwd),
        environment=of.environment,
        steps=of.steps,
        trace=of.trace,
        diagnosis=diagnosis,
    )
    return with_sentences(report).diagnosis


def evidence_of(finding: Finding, recording: Recording | None = None) -> list[str]:
    """Return the sentences of a finding's facts."""
    found = replace(finding, fixes=[])
    told = in_words(Diagnosis(bottleneck="none", findings=[found]), recording)
    return [fact.sentence for fact in told.findings[0].evidence]
