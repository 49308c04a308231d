"""Loops over small pieces: what is told of their operators was counted where they run."""

from __future__ import annotations

import pytest
from partial_recordings import recording

from torchdoctor.checks.inner_loop import CHECK
from torchdoctor.schema import process, trace

ROW = {
    "location": {"file": "/w/train.py", "line": 12, "function": "one_hot"},
    "count": 90,
    "loops": 1,
    "text": "out[mask[row, column]] = 1",
    "leaf_file": "w/train.py",
    "leaf_function": "one_hot",
}
LEARNING = {
    "location": {"file": "/w/train.py", "line": 40, "function": "main"},
    "phase": "backward",
    "count": 60,
}


@pytest.mark.parametrize(("phase", "operators"), [("loader", None), ("forward", 90.0)])
def test_operators_of_a_loop_in_the_loader_are_not_those_of_the_model(
    phase: str, operators: float | None
) -> None:
    """Of a loop of 1,024 turns it said "90 operators run in each step": those of the model."""
    traced = trace(operator_calls_per_step=90.0)
    seen = recording({**traced, **process(stacks=[{**ROW, "phase": phase}, LEARNING])})
    [symptom] = list(CHECK.examine(seen))
    assert symptom.evidence.values["operators"] == operators
