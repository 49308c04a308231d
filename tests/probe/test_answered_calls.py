"""Calls answered with what the same call returned before: only where that takes their cost away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchdoctor.probe.fixkit import answered_calls
from torchdoctor.probe.fixkit.program import Program


@pytest.fixture
def answered() -> Iterator[tuple[Program, answered_calls.AnsweredCalls]]:
    program = Program(torch, "ceiling-answered-waits", switched=True)
    calls = answered_calls.AnsweredCalls(program)
    calls.of(torch.Tensor, "double", lambda args, kwargs: tuple(args[0].shape))
    calls.start()
    yield program, calls
    calls.stop()


def loop(program: Program, calls: Any, sizes: list[int]) -> None:
    for size in sizes:
        torch.zeros(size).double()
        program.guarded(calls.next_iteration)


def test_a_call_that_is_like_one_before_is_answered(answered: Any) -> None:
    program, calls = answered
    loop(program, calls, [4] * 30)
    assert program.state == "applied"


def test_shapes_that_are_ever_new_are_refused(answered: Any) -> None:
    """They were all made for real, and the waits came out as hidden."""
    program, calls = answered
    loop(program, calls, list(range(1, 40)))
    assert program.state == "refused"
    assert program.why == {"fact": "few-calls-repeat", "values": {"of_calls": 0.0}}


def test_a_few_shapes_that_come_back_are_no_reason(answered: Any) -> None:
    program, calls = answered
    loop(program, calls, [3, 4] * 30)
    assert program.state == "applied"


def test_what_is_kept_does_not_fill_the_memory(
    answered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, calls = answered
    monkeypatch.setattr(answered_calls, "_MOST_BYTES", 1000)
    loop(program, calls, [4, 200])
    assert program.state == "refused" and program.why["fact"] == "results-too-large"
