"""Intervals rest on these quantiles: without scipy they have to be those of scipy."""

import math

import pytest

from torchdoctor.schema.students_t import (
    binomial_probability,
    binomial_quantile,
    t_probability,
    t_quantile,
)

DEGREES = (1, 2, 3.7, 5, 17, 100, 5000)


@pytest.mark.parametrize("degrees", DEGREES)
def test_quantiles_are_those_of_scipy(degrees: float) -> None:
    from scipy.special import stdtrit

    for p in (1e-9, 0.0005, 0.025, 0.2, 0.5, 0.8, 0.975, 0.9995, 1 - 1e-9):
        expected = float(stdtrit(degrees, p))
        assert t_quantile(p, degrees) == pytest.approx(expected, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("degrees", DEGREES)
def test_probabilities_are_those_of_scipy(degrees: float) -> None:
    from scipy.special import stdtr

    for t in (-1e5, -30, -2.5, -0.1, 0.0, 0.1, 2.5, 30, math.inf, -math.inf):
        assert t_probability(degrees, t) == pytest.approx(float(stdtr(degrees, t)), rel=1e-8)


@pytest.mark.parametrize("trials", [1, 5, 6, 37, 400])
def test_binomial_is_that_of_scipy(trials: int) -> None:
    from scipy.stats import binom

    assert binomial_quantile(0.025, trials, 0.5) == binom.ppf(0.025, trials, 0.5)
    for successes in (-1, 0, 1, trials // 2, trials - 1, trials, trials + 3):
        expected = binom.cdf(successes, trials, 0.3)
        assert binomial_probability(successes, trials, 0.3) == pytest.approx(expected, abs=1e-11)


def test_the_ends_are_infinite() -> None:
    assert (t_quantile(0.0, 3), t_quantile(1.0, 3)) == (-math.inf, math.inf)
