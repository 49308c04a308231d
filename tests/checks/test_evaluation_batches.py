"""Evaluation in far smaller batches than training's is told with both sizes."""

from __future__ import annotations

from typing import Any

import pytest
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.schema import process

PLACES = [{"file": "/w/train.py", "line": line, "function": "main"} for line in (9, 12)]
TRAINS = {"ident": 0, "batches": 400, "batch_size": 64, "location": PLACES[0]}
EVALUATES = {"ident": 1, "batches": 90, "batch_size": 1, "location": PLACES[1]}
STEPS = {"mean_s": 0.01, "evaluation_s": 0.004, "evaluations": 3}


def told(**evaluating: Any) -> dict[str, Any] | None:
    loaders = [TRAINS, {**EVALUATES, **evaluating}]
    of = recording({"steps": STEPS, **process(loaders=loaders)})
    [finding] = catalogue.checks()["evaluation-share"].findings(of)
    return next((dict(x.values) for x in finding.evidence if x.fact == "small-batches"), None)


def test_the_loader_with_the_small_batches_is_the_line_to_change() -> None:
    of = recording({"steps": STEPS, **process(loaders=[TRAINS, EVALUATES])})
    [finding] = catalogue.checks()["evaluation-share"].findings(of)
    assert finding.location is not None and finding.location.line == PLACES[1]["line"]
    [small] = [fact for fact in finding.evidence if fact.location is not None]
    assert small.location == finding.location


@pytest.mark.parametrize("size", [1, 16])
def test_batches_of_a_quarter_or_less_are_told(size: int) -> None:
    """Validation in batches of one took 44 %, and no cure was named."""
    assert told(batch_size=size) == {"evaluated": size, "trained": 64}


@pytest.mark.parametrize(
    "evaluating", [{"batch_size": 32}, {"batch_size": None}, {"batches": 0}, {"ident": 0}]
)
def test_others_are_not(evaluating: dict[str, Any]) -> None:
    assert told(**evaluating) is None
