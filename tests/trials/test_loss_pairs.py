"""When the losses of short launches show that a change of training does something."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchdoctor.schema import Fingerprint, LaunchTiming
from torchdoctor.trials.loss_pairs import ENOUGH_PAIRS, Pair, compare_losses

NAN = math.nan


def curve(seed: int, lower: float = 0.0, batch: int | None = None, steps: int = 200) -> list[float]:
    """A loss that falls to 1; its level differs from run to run, its noise from batch to batch."""
    run, batches = np.random.default_rng(seed), np.random.default_rng(batch or seed)
    level = 1.0 - lower + 0.02 * run.normal()
    trend = level + np.exp(-np.arange(steps) / 40)
    return list(trend + 0.05 * batches.normal(size=steps))


def launch(losses: list[float | None], **more) -> LaunchTiming:
    step_s = more.pop("step_s", 0.01)
    return LaunchTiming(ended="measured", losses=losses, step_s=[step_s] * 150, **more)


def pairs(lower: float, seeds: int = 3, first: int = 0, slower: float = 1.0) -> list[Pair]:
    return [
        (
            launch(curve(first + 2 * k)),
            launch(curve(first + 2 * k + 1, lower, batch=first + 2 * k), step_s=0.01 * slower),
        )
        for k in range(seeds)
    ]


def test_a_difference_within_the_seeds_spread_is_none() -> None:
    found = compare_losses(pairs(0.0))
    assert found.verdict == "no-difference"
    assert found.comparison is not None and found.comparison.pairs == 3
    assert found.comparison.seeds_spread
    assert found.why.values["spread"] == found.comparison.seeds_spread


def test_changes_that_do_nothing_are_rarely_said_to_do_something() -> None:
    said = [compare_losses(pairs(0.0, first=1000 * n)).verdict for n in range(300)]
    assert said.count("no-difference") >= 291


@pytest.mark.parametrize(("lower", "verdict"), [(0.4, "better"), (-0.4, "worse")])
def test_a_difference_beyond_it_is_said_with_its_interval(lower: float, verdict: str) -> None:
    found = compare_losses(pairs(lower))
    assert found.verdict == verdict
    shown = found.comparison
    assert shown is not None and shown.low is not None and shown.high is not None
    assert shown.difference == pytest.approx(-lower, abs=0.1)
    assert shown.low < shown.difference < shown.high
    assert (found.why.values["low"], found.why.values["high"]) == (shown.low, shown.high)


def test_the_time_of_a_step_stands_beside_it() -> None:
    slower = [pair for k in range(3) for pair in pairs(0.0, 1, 10 * k, slower=1.2 + 0.01 * k)]
    found = compare_losses(slower)
    assert found.comparison is not None and found.comparison.step_speedup is not None
    assert found.comparison.step_speedup.estimate == pytest.approx(1 / 1.21, rel=0.01)
    assert found.why.values["step_time"][1] == pytest.approx(1.21, rel=0.01)


def test_few_pairs_show_nothing() -> None:
    one, two = compare_losses(pairs(0.4, 1)), compare_losses(pairs(0.4, 2))
    assert (one.verdict, two.verdict) == ("shows-nothing", "shows-nothing")
    assert one.comparison is not None and two.comparison is not None
    assert (one.comparison.pairs, two.comparison.pairs) == (1, 2)
    assert one.comparison.seeds_spread is None
    assert (one.why.fact, two.why.fact) == ("loss-of-one-seed", "loss-of-few-pairs")
    assert two.why.values["fewest"] == ENOUGH_PAIRS


def test_losses_that_are_the_same_are_said_to_be() -> None:
    same = [(launch(curve(k)), launch(curve(k))) for k in range(3)]
    found = compare_losses(same)
    assert found.verdict == "no-difference"
    assert found.comparison is not None and found.comparison.difference == 0.0


def test_a_program_that_no_seed_changes_has_no_known_noise() -> None:
    same = [(launch(curve(0)), launch(curve(1, 0.5))) for _ in range(3)]
    found = compare_losses(same)
    assert found.verdict == "shows-nothing"
    assert found.comparison is not None and found.comparison.seeds_spread == 0.0


@pytest.mark.parametrize("end", [NAN, None, -math.inf])
def test_losses_that_stop_being_finite(end: float | None) -> None:
    broken = [*curve(0)[:30], *[end] * 20]
    whole = curve(1)
    saved = compare_losses([(launch(broken), launch(whole))] * 3)
    assert saved.verdict == "better"
    assert (saved.why.fact, saved.why.values["number"]) == ("loss-finite-with-it", 31)
    assert saved.comparison is not None and saved.comparison.without is None
    assert saved.comparison.with_fix is not None
    ruined = compare_losses([(launch(whole), launch(broken))] * 3)
    assert (ruined.verdict, ruined.why.values["number"]) == ("worse", 31)
    both = compare_losses([(launch(broken), launch(broken))] * 3)
    assert both.verdict == "no-difference" and both.why.fact == "loss-finite-with-neither"
    assert (both.why.values["without"], both.why.values["with_fix"]) == (31, 31)
    at_once = compare_losses([(launch([end] * 50), launch(whole))] * 3)
    assert at_once.verdict == "better" and at_once.why.values["number"] == 1


def test_other_samples_and_too_few_losses_show_nothing() -> None:
    one = launch(curve(0), fingerprints=[Fingerprint(input="a"), Fingerprint(input="b")])
    other = launch(curve(0), fingerprints=[Fingerprint(input="a"), Fingerprint(input="c")])
    unlike = compare_losses([(one, other)] * 3)
    assert (unlike.verdict, unlike.comparison) == ("shows-nothing", None)
    assert compare_losses([(one, one)] * 3).comparison is not None
    short = launch(curve(0)[:5])
    found = compare_losses([(short, short)] * 3)
    assert found.verdict == "shows-nothing" and found.why.values["losses"] == 5
    none = launch([])
    assert compare_losses([(none, none)] * 3).verdict == "shows-nothing"


@pytest.mark.parametrize("kind", ["every backward", "the last of a step"])
def test_losses_that_nobody_knows_are_not_said_to_be_broken(kind: str) -> None:
    """A backward that begins at several numbers has no loss; none of them overflowed."""

    def unknown(k: int) -> LaunchTiming:
        known: list[float | None] = list(curve(k))
        last_of_each = [None if n % 2 else loss for n, loss in enumerate(known)]
        return launch([None] * 200 if kind == "every backward" else last_of_each)

    found = compare_losses([(unknown(2 * k), unknown(2 * k + 1)) for k in range(3)], 2.0)
    assert found.verdict == "shows-nothing"
    assert found.comparison is None
    assert found.why.fact == "losses-not-single-numbers"
