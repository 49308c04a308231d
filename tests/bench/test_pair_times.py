"""How blocks of one launch become differences, whatever drifts meanwhile."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from torchdoctor.bench.pair_times import Estimator, switched_differences, untouched_differences
from torchdoctor.schema import Block

_PATH = Path(__file__).parents[2] / "benchmarks" / "pairing_simulation.py"
_SPEC = importlib.util.spec_from_file_location("pairing_simulation", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
simulation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(simulation)


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


def test_a_steady_drift_cancels_over_abba() -> None:
    drifting = round_of(0, (0, 0.0), (1, 0.1), (1, 0.2), (0, 0.3))
    assert switched_differences(drifting, 1, Estimator()) == pytest.approx([-0.1, 0.1])


def test_a_failed_launch_takes_only_its_own_pair() -> None:
    failed = Block(step_s=[])
    rest = round_of(0, (1, 0.0), (1, 0.0), (0, 1.0))
    assert switched_differences([failed, *rest], 1, Estimator()) == pytest.approx([1.0])
    assert untouched_differences([failed, *rest], Estimator()) == []


def test_the_untouched_program_with_itself_changes_sign_from_round_to_round() -> None:
    logs = ((0, 0.0), (1, 0.0), (1, 0.0), (0, 1.0))
    found = untouched_differences([*round_of(0, *logs), *round_of(1, *logs)], Estimator())
    assert found == pytest.approx([-1.0, 1.0])
    between = round_of(0, (0, 0.0), (1, 0.0), (2, 0.0), (0, 1.0))
    assert untouched_differences(between, Estimator()) == pytest.approx([-math.sqrt(0.75)])


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quiet", "typical", "noisy"])
@pytest.mark.parametrize("design", ["block of 4, interpolated", "ABBA", "A/A of a block of 4"])
@pytest.mark.parametrize("pairs", [4, 6])
def test_nominal_95_percent_intervals_cover_at_least_92(
    level: str, design: str, pairs: int
) -> None:
    made, _ = simulation.designs(pairs)[design]
    coverage, _ = simulation.coverage(made, level, runs=800)
    assert coverage >= 0.92


def test_the_simulation_can_tell_a_bad_design() -> None:
    made, _ = simulation.designs(6)["sequential"]
    coverage, _ = simulation.coverage(made, "noisy", runs=150)
    assert coverage < 0.75
