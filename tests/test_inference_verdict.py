"""What is said of a program that infers: wrong results first, waste last, in words of calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.advice.diagnosis import diagnose
from torchdoctor.fixes import mixed_precision
from torchdoctor.reports import formats
from torchdoctor.reports.summary import of_report
from torchdoctor.reports.verdict import statements
from torchdoctor.reports.vocabulary import vocabulary
from torchdoctor.reports.wording import latency
from torchdoctor.runs.report_assembly import known_so_far
from torchdoctor.schema import (
    Baseline,
    CallFigures,
    FixSet,
    Interval,
    Report,
    Shares,
    StepTime,
    Trial,
)

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


def test_no_backward_is_in_the_code_of_a_program_that_was_not_traced() -> None:
    seen = recording({"steps": {"boundary": {"kind": "loader", "learned_by": "forward"}}})
    assert seen.trace is None
    assert "backward" not in mixed_precision.instruction({"dtype": "bfloat16"}, seen)


def test_making_a_model_is_no_preparation_of_a_batch() -> None:
    """A DataLoader's workers were advised where each request filled and loaded a model."""
    place = {"file": "/w/infer.py", "line": 4, "function": "load"}
    rows = [
        {
            "location": place,
            "phase": "other",
            "count": 60,
            "leaf_file": "torch/nn/init.py",
            "leaf_function": "normal_",
        },
        {
            "location": place,
            "phase": "other",
            "count": 20,
            "leaf_file": "nn/modules/module.py",
            "leaf_function": "load",
        },
        {
            "location": CALL["location"],
            "phase": "forward",
            "count": 20,
            "leaf_file": "x.py",
            "leaf_function": "forward",
        },
    ]
    steps = {"boundary": {"kind": "forward", "learned_by": "forward"}, "before_forward_s": 0.008}
    process = {"pid": 1, "models": [{**MODEL, "made_anew": 19}], "stacks": rows}
    seen = recording({"steps": {**steps, "forward_s": 0.002}, "processes": [process]})
    found = {x.check: x for x in diagnose(seen, catalogue.checks(), catalogue.fixes()).findings}
    assert found["model-made-anew"].share_of_step == pytest.approx(0.8)
    assert "inline-batch-preparation" not in found


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


def measured(numerics: str) -> Report:
    """A program that generates, with a fix that was tried."""
    report = told(MODEL, "entry")
    assert report.steps is not None
    calls = CallFigures(
        latency_median_s=0.118,
        latency_p95_s=0.272,
        samples_per_s=16.9,
        tokens_per_s=338.0,
        first_token_s=0.0054,
        prefill_s=0.010,
        decode_s=0.108,
    )
    trial = Trial(
        fixes=FixSet({"torch-compile": {}}),
        verdict="faster",
        speedup=Interval(estimate=1.5, low=1.4, high=1.6),
        pairs=8,
        numerics=numerics,
        numerics_reason="two outputs differ",
        setup_s=30.0,
        break_even_steps=90,
    )
    return replace(
        report,
        steps=replace(report.steps, calls=calls),
        baseline=Baseline(
            step_time_s=StepTime(median=0.12, p10=0.1, p90=0.2, steps=40),
            shares=Shares(cpu=0.9, other=0.1),
        ),
        trials=[trial],
    )


@pytest.mark.parametrize("numerics", ["identical", "changed", "not-comparable"])
@pytest.mark.parametrize("format", ["text", "markdown", "html"])
def test_no_report_of_what_infers_speaks_of_training(format: str, numerics: str) -> None:
    text = formats.rendered(measured(numerics), format)
    for word in ("training", "trains", "losses", "one step", "median step"):
        assert word not in text.lower()


def test_the_first_screen_tells_what_a_caller_waits_for() -> None:
    text = formats.rendered(measured("identical"), "text", full=False)
    for figure in ("118 ms", "272 ms", "338 tokens/s", "5.40 ms", "16.9 samples/s"):
        assert figure in " ".join(text.split())
    assert '"latency_p95_s":' in formats.rendered(measured("identical"), "json")


def test_two_medians_of_a_call_are_told_apart() -> None:
    """ "one call: 746 ms (median)" of timed launches stood beside "Latency of a call: 663 ms"."""
    report = measured("identical")
    timed = replace(report, baseline=replace(report.baseline, launches_s=[0.12, 0.13]))
    assert "as observed" not in latency(report)
    assert "as observed" in latency(timed)
