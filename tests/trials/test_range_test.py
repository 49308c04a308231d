"""What a learning-rate range test shows, on problems whose largest rate is known analytically."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from torchdoctor.trials.range_test import RateLosses, agreed, range_test, words
from torchdoctor.words import AppliedFix, LaunchTiming, RangeTest

OWN = 1e-3


def descended(largest: float, noise: float = 0.1, seed: int = 0, steps: int = 200) -> RateLosses:
    """Noisy gradient descent on a quadratic: it diverges above a rate of 2 / largest."""
    random = np.random.default_rng(seed)
    curvature = np.geomspace(largest / 50, largest, 10)
    weights, losses = np.ones(10), []
    rates = OWN * 1e-2 * 1e6 ** (np.arange(steps) / (steps - 1))
    with np.errstate(over="ignore", invalid="ignore"):
        for rate in rates:
            gradient = curvature * weights + noise * np.sqrt(curvature) * random.normal(size=10)
            weights = weights - rate * gradient
            losses.append(0.5 * (curvature * weights**2).sum() + noise * abs(random.normal()))
    found = np.array(losses)
    found[~np.isfinite(found)] = np.nan
    return RateLosses(own_rate=OWN, rates=rates, losses=found)


def shown(seen: RateLosses) -> RangeTest:
    found = range_test(seen)
    assert isinstance(found, RangeTest), found
    return found


@pytest.mark.parametrize("largest", [1.0, 20.0, 400.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_rate_that_diverges_is_the_analytic_one(largest: float, seed: int) -> None:
    found = shown(descended(largest, seed=seed))
    limit = 2 / largest
    assert found.steepest_rate is not None
    assert found.lowest_loss_rate is not None
    assert found.diverged_rate is not None
    assert limit / 4 < found.diverged_rate < 4 * limit
    assert found.steepest_rate < found.lowest_loss_rate < found.diverged_rate
    assert found.max_rate == pytest.approx(found.lowest_loss_rate / 10)
    assert found.max_rate < limit, "what is recommended must not diverge"


def test_a_rate_that_is_too_low_is_said_to_be() -> None:
    found = shown(descended(1.0))
    assert found.max_rate is not None and found.own_rate < found.max_rate / 10
    said = words(found)
    assert f"Highest rate for the schedule: {found.max_rate:.2g} (a tenth of " in said
    assert f"the program's own is {found.own_rate:.2g}. An order of magnitude, no more" in said


def test_a_rate_at_which_the_loss_diverges_is_said_to_be() -> None:
    assert "at that the loss diverges here" in words(shown(descended(4000.0)))


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_gives_no_rate(seed: int) -> None:
    random = np.random.default_rng(seed)
    seen = descended(1.0)
    found = shown(dataclasses.replace(seen, losses=2.3 + 0.2 * random.normal(size=200)))
    assert found.max_rate is None
    assert found.steepest_rate is None
    assert "fell at none beyond its noise and diverges at none" in words(found)


def test_what_still_falls_at_the_highest_rate_gives_no_rate() -> None:
    found = shown(descended(0.01))
    assert found.diverged_rate is None
    assert found.max_rate is None, "it may be far higher"
    assert "diverges at none of them" in words(found)


def test_losses_that_end_in_nan_or_overflow_have_diverged() -> None:
    seen = descended(1.0, noise=0.0)
    losses = np.linspace(2.0, 1.0, 200)
    losses[120:] = np.nan
    found = shown(dataclasses.replace(seen, losses=losses))
    assert found.diverged_rate == pytest.approx(seen.rates[120])
    losses[119] = 1e300
    assert shown(dataclasses.replace(seen, losses=losses)).diverged_rate is not None


def test_too_few_rates_or_losses_show_nothing() -> None:
    assert "at least 40" in str(range_test(descended(1.0, steps=20)))
    seen = descended(1.0)
    nothing = dataclasses.replace(seen, losses=np.full(200, np.nan))
    assert "no finite losses" in str(range_test(nothing))


def test_two_seeds_give_the_more_cautious_rates_or_nothing() -> None:
    one, other = shown(descended(20.0)), shown(descended(20.0, seed=1))
    both = agreed(one, other)
    assert isinstance(both, RangeTest)
    assert both.launches == 2
    assert both.max_rate == min(one.max_rate or 0.0, other.max_rate or 0.0)
    assert "2 seeds" in words(both)
    assert "do not agree" in str(agreed(one, shown(descended(1.0))))
    flat = shown(dataclasses.replace(descended(1.0), losses=np.full(200, 2.0)))
    neither = agreed(one, flat)
    assert isinstance(neither, RangeTest) and neither.max_rate is None


def launch(updates: list[int], losses: list[float | None]) -> LaunchTiming:
    noted = {"own_rate": 0.1, "updates": updates}
    fix = AppliedFix(fix="lr-schedule", state="applied", details=noted)
    return LaunchTiming(ended="measured", losses=losses, fixes=[fix])


def test_each_loss_belongs_to_the_step_before_it() -> None:
    settings = {"lowest_factor": 0.1, "highest_factor": 10.0, "steps": 3}
    # Two backwards a step; the last two are of steps beyond the test.
    seen = RateLosses.of(
        launch([0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [9, 9, 8, 6, 5, None, 3, 1, 0, 0]), settings
    )
    assert seen is not None
    assert seen.rates == pytest.approx([0.01, 0.1, 1.0])
    assert seen.losses[0] == 8.0
    assert np.isnan(seen.losses[1]), "a loss of +inf comes back as none"
    assert seen.losses[2] == 2.0
    nobody = AppliedFix(fix="lr-schedule", state="pending")
    assert RateLosses.of(LaunchTiming(ended="measured", fixes=[nobody]), settings) is None
