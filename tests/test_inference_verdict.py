"""What is said of a program that infers: wrong results first, waste last, in words of calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.advice.diagnosis import diagnose
from torchdoctor.checkup.report_assembly import known_so_far
from torchdoctor.reports.summary import of_report
from torchdoctor.reports.verdict import statements
from torchdoctor.reports.vocabulary import vocabulary
from torchdoctor.words import Report, Shares

CALL = {"location": {"file": "/w/infer.py", "function": "main", "line": 8}, "name": "model"}
MODEL: dict[str, Any] = {"ident": 0, "forwards": 20, "cls": "net.Net", "call": CALL}
WRONG = {**MODEL, "mode_dependent": ["Dropout"]}


def told(model: dict[str, Any], boundary: str = "forward", forward_s: float = 0.009) -> Report:
    steps = {"boundary": {"kind": boundary, "learned_by": "forward"}, "forward_s": forward_s}
    seen = recording({"steps": steps, "processes": [{"pid": 1, "models": [model]}]})
    seen = replace(seen, shares=Shares(cpu=0.9, other=0.1))
    return known_so_far(seen, diagnose(seen, catalogue.checks(), catalogue.fixes()))


def test_wrong_results_are_said_first_with_their_place() -> None:
    report = told(WRONG)
    verdict = report.diagnosis.verdict
    assert [quote.check for quote in verdict.opening] == ["training-mode-left-on"]
    assert verdict.kind == "cpu_only"
    first = statements(report)[0]
    assert first.place is not None and first.place.line == 8
    summary = of_report(report)
    assert summary.location == "infer.py:8"
    assert summary.sentence and report.diagnosis.sentence.startswith(first.sentence)


def test_waste_is_said_last_whatever_the_bottleneck_is() -> None:
    for model, check in (
        ({**MODEL, "made_anew": 19}, "model-made-anew"),
        ({**MODEL, "device": "cpu", "dtypes": ["float16"]}, "half-on-cpu"),
        ({**MODEL, "padding_share": 0.9, "common_padding_share": 0.8}, "padded-tokens"),
        ({**MODEL, "grown_calls": 19}, "decoding-without-cache"),
    ):
        verdict = told(model).diagnosis.verdict
        quotes = [*verdict.closing, *([verdict.proof] if verdict.proof is not None else [])]
        assert [quote.check for quote in quotes].count(check) == 1


def test_waste_of_little_of_a_call_is_left_to_the_details() -> None:
    padded = {**MODEL, "padding_share": 0.4}
    report = told({**padded, "made_anew": 19})
    assert "padded-tokens" in {finding.check for finding in report.diagnosis.findings}
    assert "padded-tokens" not in [quote.check for quote in report.diagnosis.verdict.closing]


@pytest.mark.parametrize(("boundary", "step"), [("forward", "call"), ("loader", "batch")])
def test_a_step_of_what_infers_is_a_call_or_a_batch(boundary: str, step: str) -> None:
    report = told(MODEL, boundary)
    assert report.kind == "inference"
    words = vocabulary(report)
    assert words["each_step"] == f"each {step}" and words["the_step"] == f"the {step}"


def test_a_training_is_told_as_one() -> None:
    seen = replace(recording(), shares=Shares(cpu=1.0))
    report = known_so_far(seen, diagnose(seen, catalogue.checks(), catalogue.fixes()))
    assert report.kind == "training"
    assert vocabulary(report)["each_step"] == "each step"
    assert report.diagnosis.sentence
