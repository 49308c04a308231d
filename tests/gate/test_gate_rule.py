"""The rule itself: how often it cries wolf, and how often it sleeps. Simulated, no processes."""

from __future__ import annotations

import math
import random

import pytest

from torchdoctor.gate.decision import FIRST_LOOK, SECOND_LOOK, against_stored, grown, look
from torchdoctor.gate.figures import sentence
from torchdoctor.records import Interval
from torchdoctor.records.gate import GateMetric

# Log units: offset of a launch, random walk between launches, share of launches with a spike.
MACHINES = {
    "quiet": (0.004, 0.002, 0.0),
    "typical": (0.015, 0.008, 0.08),
    "noisy": (0.04, 0.02, 0.2),
}


class Machine:
    def __init__(self, kind: str, seed: int) -> None:
        self.offset, self.walk, self.spikes = MACHINES[kind]
        self.random, self.drift = random.Random(seed), 0.0

    def launch(self, log_s: float) -> float:
        self.drift += self.random.gauss(0.0, self.walk)
        spike = self.random.expovariate(20.0) if self.random.random() < self.spikes else 0.0
        return log_s + self.drift + self.random.gauss(0.0, self.offset) + spike


def gated(kind: str, slowdown: float, seed: int, tolerance: float = 0.02) -> str:
    machine, differences = Machine(kind, seed), []
    order = random.Random(seed + 1)
    while len(differences) < SECOND_LOOK:
        first = order.random() < 0.5
        for new_first in (first, not first):
            if new_first:
                new, old = machine.launch(math.log1p(slowdown)), machine.launch(0.0)
            else:
                old, new = machine.launch(0.0), machine.launch(math.log1p(slowdown))
            differences.append(new - old)
            if len(differences) in (FIRST_LOOK, SECOND_LOOK):
                verdict = look(differences, tolerance)
                if verdict != "more":
                    return verdict
    raise AssertionError("the second look decides")


@pytest.mark.parametrize("kind", MACHINES)
def test_the_same_program_is_hardly_ever_called_slower(kind: str) -> None:
    alarms = sum(gated(kind, 0.0, seed) == "slower" for seed in range(1500))
    assert alarms <= 0.02 * 1500


@pytest.mark.parametrize(("kind", "least"), [("quiet", 0.999), ("typical", 0.97), ("noisy", 0.3)])
def test_ten_percent_slower_is_caught(kind: str, least: float) -> None:
    caught = sum(gated(kind, 0.10, seed) == "slower" for seed in range(600))
    assert caught >= least * 600


def test_a_slowdown_within_the_tolerance_passes() -> None:
    verdicts = [gated("quiet", 0.03, seed, tolerance=0.05) for seed in range(300)]
    assert verdicts.count("slower") == 0
    assert [gated("quiet", 0.03, seed, tolerance=0.01) for seed in range(50)].count("slower") == 50


def test_faster_is_not_slower_at_the_first_look() -> None:
    assert look([-0.3, -0.31, -0.29, -0.3, -0.3], 0.02) == "not slower"
    assert look([0.1, 0.1, 0.1], 0.02) == "more"


def test_stored_launches_and_new_ones() -> None:
    stored = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995]
    assert against_stored(stored, [1.0, 1.01, 1.0], 0.02)[0] == "not slower"
    verdict, ratio, limit = against_stored(stored, [1.2, 1.21, 1.19], 0.02)
    assert verdict == "slower"
    assert ratio == pytest.approx(1.2, rel=0.01)
    assert 1.02 <= limit < 1.1
    noisy = [1.0, 1.3, 0.8, 1.1, 0.9]
    assert against_stored(noisy, [1.2, 1.21, 1.19], 0.02)[0] == "not slower"


def test_memory_grows_only_beyond_every_launch_of_the_reference() -> None:
    assert grown([100, 101, 102], [120, 121, 122], 0.1)
    assert not grown([100, 101, 130], [120, 121, 122], 0.1)
    assert not grown([100, 101, 102], [105, 106, 107], 0.1)
    assert not grown([], [1.0], 0.1)


def test_a_pass_says_what_it_could_not_have_seen() -> None:
    def passed(high: float, tolerance: float = 0.02) -> str:
        row = GateMetric(
            name="step_time",
            reference=0.01,
            new=0.01,
            unit="s/sample",
            ratio=Interval(estimate=1.0, low=1 / high, high=high),
            tolerance=tolerance,
            verdict="ok",
        )
        return sentence([row], "not slower", "main", [])

    assert passed(1.05).startswith("Not slower than main")
    assert "up to 61 %" in passed(1.606) and "proven" in passed(1.606)
    assert passed(1.3, tolerance=0.2).startswith("Not slower")
