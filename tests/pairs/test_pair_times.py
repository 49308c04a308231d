"""How blocks of one launch become differences, whatever drifts meanwhile."""

from __future__ import annotations

import math

import pytest

from torchdoctor.pairs.pair_times import Estimator, switched_differences
from torchdoctor.words import Block


def round_of(number: int, *logs: tuple[int, float]) -> list[Block]:
    """A round of blocks, one second each: (arm, logarithm of its step)."""
    return [
        Block(
            arm=arm,
            round=number,
            step_s=[math.exp(log)] * 5,
            window_s=5 * math.exp(log),
            began_s=float(at),
            ended_s=float(at + 1),
        )
        for at, (arm, log) in enumerate(logs)
    ]


def test_a_steady_drift_cancels_wherever_an_arm_stands() -> None:
    blocks = round_of(0, (0, 0.0), (1, 0.1), (2, 0.2 - 0.3), (0, 0.3))
    assert switched_differences(blocks, 1, Estimator()) == pytest.approx([0.0])
    assert switched_differences(blocks, 2, Estimator()) == pytest.approx([0.3])


def test_an_arm_that_is_alone_is_compared_with_its_neighbours() -> None:
    first = round_of(0, (0, 0.0), (1, -0.1), (1, -0.1), (0, 0.2))
    second = round_of(1, (1, -0.1), (0, 0.0), (0, 0.0), (1, -0.2))
    found = switched_differences([*first, *second], 1, Estimator())
    assert found == pytest.approx([0.1, 0.3, 0.1, 0.2])


def test_a_round_that_was_cut_short_is_compared_with_the_baseline_that_it_has() -> None:
    assert switched_differences(round_of(0, (0, 0.0), (1, -0.2)), 1, Estimator()) == [
        pytest.approx(0.2)
    ]
    assert switched_differences(round_of(0, (1, -0.2)), 1, Estimator()) == []
    unmeasured = [Block(step_s=[], arm=0), *round_of(0, (1, -0.2))]
    assert switched_differences(unmeasured, 1, Estimator()) == []
