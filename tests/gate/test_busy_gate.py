"""A gate beside a busy machine tells it, and calls nothing slower that others' load may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torchdoctor.gate.answer import answer
from torchdoctor.gate.busy_machine import with_load
from torchdoctor.reports import gate as formats
from torchdoctor.reports.gate_facts import with_sentence
from torchdoctor.schema import (
    Diagnosis,
    Environment,
    Interval,
    OtherLoad,
    Report,
    SensorStatistics,
    WorkloadRecord,
)
from torchdoctor.schema.gate import GateMetric, GateReport
from torchdoctor.schema.record_files import encode

BUSY, QUIET = OtherLoad(held=1.9, usable=2.0), OtherLoad(held=0.1, usable=2.0)
THEN = Report(
    workload=WorkloadRecord(command=["train.py"]),
    environment=Environment(),
    diagnosis=Diagnosis(bottleneck="none"),
)
THEN_BUSY = replace(THEN, other_load=OtherLoad(held=1.7, usable=2.0))
THEN_OBSERVED_BUSY = replace(THEN, sensors=SensorStatistics(other_load_cpus=1.8))


def result(low: float = 1.05, time: str = "worse", memory: str = "ok") -> GateReport:
    ratio = Interval(estimate=1.2, low=low, high=1.4)
    rows = [
        GateMetric(name="step_time", unit="s/step", ratio=ratio, tolerance=0.02, verdict=time),
        GateMetric(name="peak_memory", unit="bytes", tolerance=0.1, verdict=memory),
    ]
    verdict = "slower" if "worse" in (time, memory) else "not slower"
    return GateReport(
        workload=WorkloadRecord(command=["python", "train.py"]),
        environment=Environment(),
        reference="main",
        verdict=verdict,
        answer=answer(rows, verdict, "main"),
        metrics=rows,
    )


@pytest.mark.parametrize(
    ("measured", "load", "stored", "verdict"),
    [
        # Load meets both sides of a pair: open is what reaches into the tolerance.
        (result(low=1.01), BUSY, None, "inconclusive"),
        (result(low=1.05), BUSY, None, "slower"),
        (result(low=1.01), QUIET, None, "slower"),
        (result(low=1.01), None, None, "slower"),
        # Stored launches met another load, whatever the interval says.
        (result(low=1.3), BUSY, THEN, "inconclusive"),
        (result(low=1.3), BUSY, THEN_BUSY, "slower"),
        (result(low=1.3), BUSY, THEN_OBSERVED_BUSY, "slower"),
        (result(low=1.3), QUIET, THEN, "slower"),
        # Memory does not grow with the load of others.
        (result(low=1.01, memory="worse"), BUSY, THEN, "slower"),
        (result(time="ok"), BUSY, THEN, "not slower"),
    ],
)
def test_a_slow_down_that_may_be_load_is_not_decided(
    measured: GateReport, load: OtherLoad | None, stored: Report | None, verdict: str
) -> None:
    judged = with_load(measured, load, stored)
    assert judged.verdict == verdict
    assert judged.other_load == load
    kinds = [fact.fact for fact in judged.answer]
    assert ("busy-machine" in kinds) == (load == BUSY)
    assert ("undecided" in kinds) == (verdict == "inconclusive")
    if verdict == "inconclusive":
        assert judged.metrics[0].verdict == "not decided" and "worse" not in kinds


def test_every_form_says_how_much_others_held() -> None:
    judged: Any = with_sentence(with_load(result(low=1.01), BUSY))
    assert "1.9 of 2" in judged.sentence
    assert "1.9 of 2" in formats.annotation(judged) and "1.9 of 2" in formats.junit(judged)
    assert "<failure" not in formats.junit(judged)
    assert b'"held": 1.9' in encode(judged)
    assert "1.9 of 2" not in with_sentence(with_load(result(), QUIET)).sentence
