"""A run whose report could not be stored: the command ends with the fact that says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchdoctor.cli.run import raise_for
from torchdoctor.schema import (
    Diagnosis,
    Environment,
    Remark,
    Report,
    WorkloadRecord,
    as_remark,
    fact,
)
from torchdoctor.schema.errors import UsageError


def test_a_report_that_is_not_stored_is_told_by_its_fact_wherever_it_stands() -> None:
    unwritten = fact("report-unwritten", path="out/report.json", problem="gone")
    remark = replace(as_remark(unwritten), sentence="<unwritten>")
    another = Remark(severity="detail", fact="no-sandbox", sentence="<another>")
    report = Report(
        workload=WorkloadRecord(command=["train.py"]),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="none"),
        remarks=[remark, another],
        doubts=["<unwritten>", "<another>"],
    )
    with pytest.raises(UsageError, match="<unwritten>"):
        raise_for(report)
