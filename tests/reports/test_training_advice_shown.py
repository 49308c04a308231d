"""What reports say of advice on training: what came out, what it may cost, and never a speed-up."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import replace

import pytest
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.reports.formats import rendered
from torchdoctor.runs.offered_fixes import advice
from torchdoctor.schema import (
    Diagnosis,
    Environment,
    Recommendation,
    RecommendedFix,
    Report,
    TrainingTrial,
    WorkloadRecord,
)
from torchdoctor.schema.record_files import decode_report

SGD = {"ident": 0, "cls": "torch.optim.sgd.SGD", "lr": 0.01, "first_lr": 0.01, "steps": 60}


def trial(verdict: str, **values: object) -> TrainingTrial:
    return TrainingTrial(
        **{
            "fix": "lr-schedule",
            "verdict": verdict,
            "sentence": "It [came] <out>.",
            **values,
        }  # type: ignore[arg-type]
    )


def advised() -> list[RecommendedFix]:
    seen = recording({"processes": [{"pid": 1, "optimizers": [SGD]}]})
    return advice([], seen, catalogue.fixes())


def report_of(*trials: TrainingTrial) -> Report:
    return Report(
        workload=WorkloadRecord(command=["train.py"]),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="none"),
        training_trials=list(trials),
        recommendation=Recommendation(also_offered=advised()),
    )


@pytest.mark.parametrize(
    ("verdict", "begins"),
    [
        ("better", "Tried: "),
        ("shows-nothing", "Tried: "),
        ("failed", "Failed: "),
        ("not-tried", "Not tried: "),
    ],
)
def test_every_format_says_what_came_out_and_what_it_may_cost(verdict: str, begins: str) -> None:
    report = report_of(trial(verdict))
    [offered] = [fix for fix in report.recommendation.also_offered if fix.fix == "lr-schedule"]
    for text in (
        rendered(report, "terminal"),
        rendered(report, "markdown"),
        rendered(report, "html"),
    ):
        plain = " ".join(text.replace("&lt;", "<").replace("&gt;", ">").replace("\\", "").split())
        assert f"{begins}It [came] <out>." in plain
        assert offered.warning and offered.warning in plain
        assert catalogue.why(offered.fix) in plain, "or why should one?"
        assert "torchdoctor explain lr-schedule" in plain
        plain = re.sub(r"<(style|script)\b.*?</\1>", "", plain)
        assert not re.search(r"\dx\b", plain), "no speed-up"


def test_the_code_of_advice_is_code_and_its_place_stands_outside() -> None:
    """ "train.py:98  torch.optim.AdamW(...)" is what somebody pastes, and no Python."""
    here = {"file": "/w/train.py", "line": 98}
    adam = {**SGD, "cls": "torch.optim.adam.Adam", "weight_decay": 0.01, "location": here}
    flags = {"averaged_by_loop": 1, "averaged_location": here}
    convolutions = [{"ident": 0, "forwards": 9, "conv2d": 8}]
    seen = recording(
        {
            "processes": [
                {
                    "pid": 1,
                    "optimizers": [adam],
                    "flags": flags,
                    "models": convolutions,
                    "analysed_steps": 6,
                    "input_mean": 127.0,
                    "input_std": 70.0,
                }
            ]
        }
    )
    found = {one.fix: one for one in advice([], seen, catalogue.fixes())}
    assert {"adamw", "lr-schedule", "ema-foreach", "normalization"} <= set(found)
    for one in found.values():
        ast.parse(one.instruction or "")
    assert "AdamW(model.parameters(), lr=0.01, weight_decay=0.01)" in found["adamw"].instruction
    for ident in ("adamw", "lr-schedule", "ema-foreach"):
        assert found[ident].location is not None and found[ident].location.line == 98


def test_of_four_ways_to_compile_one_is_to_be_run() -> None:
    """The block is what a trace's report shows: pasted whole, all four would run."""
    block = catalogue.fixes()["torch-compile"].text.split("Make it permanent")[1]
    code = block.split("Sources")[0].split("\n", 2)[2]
    tree = ast.parse(textwrap.dedent(code))
    assert [ast.unparse(x) for x in tree.body] == ["model.compile()"]


def test_advice_without_a_trial_is_shown_as_it_was() -> None:
    text = " ".join(rendered(report_of(), "terminal").split())
    for fix in advised():
        assert fix.fix in text and (fix.warning or "") in text
    assert "ried: " not in text


def test_report_json_gives_back_what_was_tried() -> None:
    report = report_of(trial("better", details={"weight_decay": 0.01}))
    assert replace(decode_report(rendered(report, "json")), summary=None) == report
