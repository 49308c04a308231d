"""The rule itself: how often it cries wolf, and how often it sleeps. Simulated, no processes."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest

from torchdoctor.bench.pair_times import Estimator
from torchdoctor.gate.decision import (
    FAIL,
    FAIL_FINAL,
    LOOKS,
    against_stored,
    blind_spot,
    grown,
    is_blind,
    look,
    ratio_of,
)
from torchdoctor.gate.figures import Measured, estimator, metrics
from torchdoctor.schema import Block, Boundary, LaunchTiming, Pair, StepStatistics
from torchdoctor.schema.students_t import t_quantile

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


def gated(
    kind: str, slowdown: float, seed: int, tolerance: float = 0.02, most: int = LOOKS[-1]
) -> tuple[str, list[float]]:
    """The verdict, and the differences that it rests on; `most`: pairs that the time is for."""
    machine, differences = Machine(kind, seed), []
    order = random.Random(seed + 1)
    while True:
        first = order.random() < 0.5
        for new_first in (first, not first):
            if new_first:
                new, old = machine.launch(math.log1p(slowdown)), machine.launch(0.0)
            else:
                old, new = machine.launch(0.0), machine.launch(math.log1p(slowdown))
            differences.append(new - old)
            verdict = look(differences, tolerance, final=len(differences) == most)
            if verdict != "more":
                return verdict, differences


@pytest.mark.parametrize("kind", MACHINES)
def test_the_same_program_is_hardly_ever_called_slower(kind: str) -> None:
    alarms = sum(gated(kind, 0.0, seed)[0] == "slower" for seed in range(1500))
    assert alarms <= 0.012 * 1500


@pytest.mark.parametrize("tails", ["normal", "heavy"])
def test_all_looks_together_keep_the_false_alarms(tails: str) -> None:
    """Without any tolerance, and never stopped by a pass: nothing but the bound at each look."""
    source, gates = np.random.default_rng(3), 20_000
    shape = (gates, LOOKS[-1])
    pairs = source.standard_normal(shape) if tails == "normal" else source.standard_t(3, shape)
    alarmed = np.zeros(gates, dtype=bool)
    for count in range(LOOKS[0], LOOKS[-1] + 1):
        seen = pairs[:, :count]
        t = seen.mean(1) / (seen.std(1, ddof=1) / math.sqrt(count))
        # The time may be up after any number of pairs.
        last = alarmed | (t > t_quantile(1 - FAIL_FINAL / 2, count - 1))
        assert last.mean() < 0.0115, count
        if count in LOOKS:
            alarmed |= t > t_quantile(1 - FAIL / 2, count - 1)
    assert alarmed.mean() < 0.009
    # The rule itself alarms where that says so.
    for row in range(40):
        values = list(pairs[row, :14])
        verdict = look(values, 0.0) == "slower"
        expected = t_quantile(0.999, 13) < fmean(values) / (stdev(values) / math.sqrt(14))
        assert verdict == expected


@pytest.mark.parametrize(("kind", "most"), [("quiet", 80), ("typical", 80), ("noisy", 14)])
def test_what_a_pass_says_it_ruled_out_was_not_there(kind: str, most: int) -> None:
    """Stopping when the interval looks good must not make it too narrow."""
    wrong = passed = 0
    for seed in range(400):
        verdict, differences = gated(kind, 0.03, seed, tolerance=0.05, most=most)
        passed += verdict == "not slower"
        blind = blind_spot(ratio_of(differences))
        wrong += verdict == "not slower" and blind is not None and blind < 0.03
    assert passed > 200
    assert wrong <= 0.05 * passed


def test_it_goes_on_until_it_could_have_seen_the_tolerance() -> None:
    wide = [0.10, -0.10, 0.09, -0.11, 0.02]
    assert look(wide, 0.02) == "more"
    assert look(wide, 0.02, final=True) == "not slower"
    assert is_blind(blind_spot(ratio_of(wide)), 0.02)
    narrow = [0.001, -0.002, 0.002, 0.0, -0.001]
    assert look(narrow, 0.02) == "not slower"
    assert not is_blind(blind_spot(ratio_of(narrow)), 0.02)
    assert look([*narrow, 0.0], 0.02) == "more"  # six pairs are no look
    for seed in range(200):
        verdict, differences = gated("typical", 0.0, seed)
        if verdict == "not slower" and len(differences) < LOOKS[-1]:
            assert not is_blind(blind_spot(ratio_of(differences)), 0.02)


@pytest.mark.parametrize(("kind", "least"), [("quiet", 0.999), ("typical", 0.97), ("noisy", 0.97)])
def test_ten_percent_slower_is_caught(kind: str, least: float) -> None:
    caught = sum(gated(kind, 0.10, seed)[0] == "slower" for seed in range(600))
    assert caught >= least * 600


def test_a_slowdown_within_the_tolerance_passes() -> None:
    verdicts = [gated("quiet", 0.03, seed, tolerance=0.05)[0] for seed in range(300)]
    assert verdicts.count("slower") == 0
    assert all(gated("quiet", 0.03, seed, tolerance=0.01)[0] == "slower" for seed in range(50))


def test_faster_is_not_slower_at_the_first_look() -> None:
    assert look([-0.3, -0.31, -0.29, -0.3, -0.3], 0.02) == "not slower"
    assert look([0.1, 0.1, 0.1], 0.02) == "more"


def test_stored_launches_and_new_ones() -> None:
    stored = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995]
    assert against_stored(stored, [1.0, 1.01, 1.0], 0.02).verdict == "not slower"
    found = against_stored(stored, [1.2, 1.21, 1.19], 0.02)
    assert found.verdict == "slower"
    assert found.ratio.estimate == pytest.approx(1.2, rel=0.01)
    assert 1.01 <= found.limit < 1.1
    noisy = [1.0, 1.3, 0.8, 1.1, 0.9]
    assert against_stored(noisy, [1.2, 1.21, 1.19], 0.02).verdict == "not slower"


def test_the_interval_of_stored_launches_is_one_of_95_percent() -> None:
    """What is printed as such holds the true ratio in 95 of 100 gates; the bound is wider."""
    random_state, gates, covered, failed = np.random.default_rng(7), 2000, 0, 0
    for _ in range(gates):
        before, now = (np.exp(random_state.normal(0.0, 0.03, n)).tolist() for n in (5, 5))
        found = against_stored(before, now, 0.0)
        covered += found.ratio.low <= 1.0 <= found.ratio.high
        failed += found.verdict == "slower"
    assert 0.93 <= covered / gates <= 0.97
    assert failed / gates <= 0.002


def test_memory_grows_only_beyond_every_launch_of_the_reference() -> None:
    assert grown([100, 101, 102], [120, 121, 122], 0.1)
    assert not grown([100, 101, 130], [120, 121, 122], 0.1)
    assert not grown([100, 101, 102], [105, 106, 107], 0.1)
    assert not grown([], [1.0], 0.1)


def block(step_s: float, steps: int = 4) -> Block:
    times = [step_s] * steps
    return Block(step_s=times, samples=2.0 * steps, window_s=sum(times))


def pair(blocks: list[tuple[Block, Block]]) -> Pair:
    launches = [
        LaunchTiming(ended="measured", step_s=x.step_s, samples=x.samples) for x in blocks[0]
    ]
    return Pair(launches=(launches[0], launches[1]), blocks=blocks, side_by_side=True)


def test_blocks_that_met_the_load_of_others_are_outvoted() -> None:
    blocks = [(block(0.10), block(0.11)) for _ in range(6)]
    blocks += [(block(0.10), block(0.35)), (block(0.31), block(0.11))]
    how = Estimator()
    assert how.times(blocks) == pytest.approx((0.05, 0.055))
    per_step = replace(how, per_step=True)
    assert per_step.times(blocks)[1] == pytest.approx(0.11)
    assert how.times([]) is None
    by_mean = Estimator(by="mean", trimmed=0.0, per_step=True)
    rare = [(block(0.1), block(0.1))] * 7 + [(block(0.1), block(0.9))]
    # All time over all samples: a geometric mean would make little of long stalls in few blocks.
    assert by_mean.times(rare) == pytest.approx((0.1, (7 * 0.1 + 0.9) / 8))
    # A block that held a stall was cut short: its two steps are no whole block.
    cut = [(block(0.01, 40), block(0.005, 40))] * 15 + [(block(1.5, 2), block(1.5, 2))]
    old, new = by_mean.times(cut)
    assert old / new == pytest.approx((15 * 0.4 + 3) / (15 * 0.2 + 3))


def test_what_makes_one_time_of_the_blocks() -> None:
    def of(two_modes: bool, cycle: int | None, load: float) -> Estimator:
        steps = replace(samples_steps, two_modes=two_modes, cycle_steps=cycle)
        return estimator([(steps, load), (samples_steps, 0.0)])

    boundary = Boundary(kind="optimizer")
    samples_steps = StepStatistics(
        boundary=boundary, steps=30, warmup_steps=10, median_s=0.1, mean_s=0.1,
        p10_s=0.1, p90_s=0.1,
    )  # fmt: skip
    assert of(False, None, 0.0) == of(False, None, 2.0) == Estimator()
    assert of(True, 4, 2.0) == Estimator(by="mean")
    assert of(True, None, 0.0) == Estimator(by="mean", trimmed=0.0)
    assert of(True, None, 2.0) == Estimator()
    # A GPU's host runs ahead of it: only a block that ends with a synchronisation is whole.
    assert estimator([(samples_steps, 0.0)], on_device=True) == Estimator(by="mean")


EVEN = StepStatistics(
    boundary=Boundary(kind="optimizer"), steps=30, warmup_steps=10,
    median_s=0.1, mean_s=0.1, p10_s=0.1, p90_s=0.1,
)  # fmt: skip


def test_the_ratio_is_the_quotient_of_the_columns() -> None:
    source = random.Random(5)
    measured = Measured(how=Estimator())
    for _ in range(6):
        blocks = [
            (block(0.1 * source.uniform(0.7, 1.3)), block(0.1 * source.uniform(0.7, 1.3)))
            for _ in range(8)
        ]
        measured.pairs.append(pair(blocks))
    for row in metrics(measured, {"step_time": 0.02}, "not slower", [(EVEN, EVEN)])[:2]:
        assert row.new / row.reference == pytest.approx(row.ratio.estimate, rel=1e-9)


def test_means_see_what_a_few_steps_do() -> None:
    """One step in a hundred saves a checkpoint: medians and middle halves do not see it."""
    source, measured = random.Random(3), Measured(how=Estimator())
    for _ in range(7):
        blocks = []
        for number in range(12):
            old, new = ([0.1 * source.uniform(0.98, 1.02) for _ in range(20)] for _ in range(2))
            if number % 5 == 0:
                new[7] += 1.2
            sides = [Block(step_s=x, samples=40.0, window_s=sum(x)) for x in (old, new)]
            blocks.append((sides[0], sides[1]))
        measured.pairs.append(pair(blocks))
    mean = measured.mean_ratio
    assert mean is not None and 1.08 < mean.low < mean.estimate < 1.2
    row, *_ = metrics(measured, {"step_time": 0.02}, "not slower", [(EVEN, EVEN)])
    assert row.ratio.high < 1.01 and row.verdict == "perhaps slower"
    by_mean = replace(measured, how=Estimator(by="mean", trimmed=0.0))
    assert by_mean.mean_ratio is None, "it decides itself"
    even = Measured(how=Estimator(), pairs=[pair([(block(0.1), block(0.1))])] * 5)
    assert even.mean_ratio.high == pytest.approx(1.0)
