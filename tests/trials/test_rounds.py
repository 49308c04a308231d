import importlib.util
import math
from pathlib import Path

import pytest

from torchdoctor.pairs.pair_times import Estimator
from torchdoctor.trials.rounds import BASELINE, Round, Slot, a_a_differences, differences
from torchdoctor.words import LaunchTiming

_PATH = Path(__file__).parents[2] / "benchmarks" / "pairing_simulation.py"
_SPEC = importlib.util.spec_from_file_location("pairing_simulation", _PATH)
simulation = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(simulation)


seconds = Estimator()


def round_of(shape, *slots, flip=False):
    made = [
        Slot(
            arm=arm,
            timing=LaunchTiming(ended="measured" if s else "failed", step_s=[s] if s else []),
            began_s=float(i),
            ended_s=float(i + 1),
            phase="confirm",
        )
        for i, (arm, s) in enumerate(slots)
    ]
    return Round(phase="confirm", shape=shape, flip=flip, slots=made)


def test_a_steady_drift_cancels_wherever_a_candidate_stands():
    e = math.exp
    one = round_of("block", (BASELINE, e(0.0)), ("a", e(0.1)), ("b", e(0.2)), (BASELINE, e(0.3)))
    assert differences([one], "a", seconds) == pytest.approx([0.0])
    assert differences([one], "b", seconds) == pytest.approx([0.0])


def test_a_steady_drift_cancels_over_abba():
    e = math.exp
    one = round_of("abba", (BASELINE, e(0.0)), ("a", e(0.1)), ("a", e(0.2)), (BASELINE, e(0.3)))
    assert differences([one], "a", seconds) == pytest.approx([-0.1, 0.1])


def test_a_faster_candidate_is_above_zero():
    one = round_of("block", (BASELINE, 2.0), ("a", 1.0), (BASELINE, 2.0))
    assert differences([one], "a", seconds) == pytest.approx([math.log(2.0)])


def test_a_round_cut_short_keeps_what_it_can():
    one = round_of("block", (BASELINE, 2.0), ("a", 1.0))
    assert differences([one], "a", seconds) == pytest.approx([math.log(2.0)])
    assert a_a_differences([one], seconds) == []
    assert differences([round_of("abba", (BASELINE, 2.0))], "a", seconds) == []


def test_a_failed_launch_takes_only_its_own_pair():
    one = round_of("abba", (BASELINE, None), ("a", 1.0), ("a", 1.0), (BASELINE, 3.0))
    assert differences([one], "a", seconds) == pytest.approx([math.log(3.0)])
    block = round_of("block", (BASELINE, None), ("a", None), ("b", 1.0), (BASELINE, 3.0))
    assert differences([block], "a", seconds) == []
    assert differences([block], "b", seconds) == pytest.approx([math.log(3.0)])


def test_the_sign_of_the_a_a_candidate_is_the_rounds():
    slots = ((BASELINE, 1.0), ("a", 1.0), ("a", 1.0), (BASELINE, 2.0))
    kept, flipped = round_of("abba", *slots), round_of("abba", *slots, flip=True)
    assert a_a_differences([kept], seconds) == pytest.approx([-math.log(2.0)])
    assert a_a_differences([flipped], seconds) == pytest.approx([math.log(2.0)])


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quiet", "typical", "noisy"])
@pytest.mark.parametrize("design", ["block of 4, interpolated", "ABBA", "A/A of a block of 4"])
@pytest.mark.parametrize("pairs", [4, 6])
def test_nominal_95_percent_intervals_cover_at_least_92(level, design, pairs):
    made, _ = simulation.designs(pairs)[design]
    coverage, _ = simulation.coverage(made, level, runs=800)
    assert coverage >= 0.92


def test_the_simulation_can_tell_a_bad_design():
    made, _ = simulation.designs(6)["sequential"]
    coverage, _ = simulation.coverage(made, "noisy", runs=150)
    assert coverage < 0.75
