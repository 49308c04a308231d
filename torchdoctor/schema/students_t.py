"""Student's t and the binomial distribution, as far as reports need them: without scipy. Pure."""

import math
from functools import lru_cache

_TINY = 1e-300
_PRECISE = 1e-16
_MOST_TERMS = 10_000
_MOST_HALVINGS = 200


def t_probability(degrees: float, t: float) -> float:
    """Return how probable a value of at most `t` is."""
    if math.isinf(t):
        return float(t > 0)
    tail = 0.5 * _beta_share(degrees / (degrees + t * t), degrees / 2, 0.5)
    return 1.0 - tail if t > 0 else tail


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: float) -> float:
    """Return the value that is not exceeded with this probability; infinite at 0 and at 1."""
    if not 0.0 < probability < 1.0:
        return math.nan if math.isnan(probability) else math.copysign(math.inf, probability - 0.5)
    if probability < 0.5:
        return _low(probability, degrees)
    return -_low(1.0 - probability, degrees)


def _low(probability: float, degrees: float) -> float:
    """Return a quantile at or below the median, by halving what brackets it."""
    far = 1.0
    while t_probability(degrees, -far) > probability:
        far *= 2.0
    low = -far
    high = -far / 2 if far > 1.0 else 0.0
    for _ in range(_MOST_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_probability(degrees, middle) > probability:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def binomial_quantile(probability: float, trials: int, chance: float) -> int:
    """Return the fewest successes that are not exceeded with this probability."""
    return next(
        (k for k in range(trials) if binomial_probability(k, trials, chance) >= probability), trials
    )


def binomial_probability(successes: float, trials: int, chance: float) -> float:
    """Return how probable at most so many successes are."""
    whole = math.floor(successes)
    if whole < 0:
        return 0.0
    if whole >= trials:
        return 1.0
    return _beta_share(1.0 - chance, trials - whole, whole + 1)


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function of x, by its continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logarithm + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function (Lentz)."""
    c = 1.0
    d = 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 / _not_zero(1.0 + term * d)
            c = _not_zero(1.0 + term / c)
            value *= d * c
        if abs(d * c - 1.0) < _PRECISE * 10:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
