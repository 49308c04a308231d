"""The interval of a set's own pairs, and its blocks in a launch, finite from one pair on. Pure.

A pair's error is normal with standard deviation sigma, the machine's, and in one pair of ten three
times as wide, but no wider than any was. A prior knows other machines; each pair adds to it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TAIL_SHARE = 0.1
TAIL_WIDTH = 3.0
# A factor of ten is no error: of 480 pairs side by side, busy or not, the worst was 0.41 off.
WIDEST = 0.4
SIGMAS: Floats = np.geomspace(0.01, 0.25, 11)
# The likeliest medians of 120 comparisons of a program with itself and of 77 runs are 3 and 5 %.
# It lies towards the bad end: what is right on average would promise too much on a bad machine.
_MEDIAN_SIGMA = 0.06
_SIGMA_SPREAD = 0.8
_MEDIAN_SIGMA_IN_TURNS = 0.15  # launches that follow each other meet different loads
# Stopping when a result looks good costs the rest of 5 %; one pair cannot show its own error.
_ERROR_RATE = 0.025
_ERROR_RATE_OF_ONE_PAIR = 0.02
_POINTS = 1201
# Error of blocks within a launch: what the next does not repeat (in 56 comparisons with pairs a
# fifth of the gain, alike for the settings of one fix), and part of sigma.
_BLOCK_ERROR = 0.025
_LEAST_SPREAD = 0.01
_BLOCK_PART = 0.25
BLOCK_SIGMA = 0.4
_SAYS_NOTHING = 0.02  # density: blocks far from every pair do not count
_MOST_OF_BLOCKS, _BEYOND = 2.0, 0.7  # sigma / their error, at most: in 13 runs 0.2 to 1, once 2.3


@dataclass(frozen=True, kw_only=True)
class LogInterval:
    """A log speed-up and its interval."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Return half the distance between the bounds."""
        return (self.high - self.low) / 2


def sigma_prior_log(side_by_side: bool = True) -> Floats:
    """Return the log weight of each of `SIGMAS` before anything was measured."""
    median = _MEDIAN_SIGMA if side_by_side else _MEDIAN_SIGMA_IN_TURNS
    return -0.5 * (np.log(SIGMAS / median) / _SIGMA_SPREAD) ** 2


def error_density(error: Floats, sigma: Floats | float) -> Floats:
    """Return the density of a pair's error, up to a constant factor."""
    wide = np.maximum(np.minimum(TAIL_WIDTH * sigma, WIDEST), sigma)
    near = (1 - TAIL_SHARE) / sigma * np.exp(-0.5 * (error / sigma) ** 2)
    far = TAIL_SHARE / wide * np.exp(-0.5 * (error / wide) ** 2)
    return np.asarray(near + far)


@lru_cache(1024)
def spread_evidence(logs: tuple[float, ...]) -> Floats:
    """Return the log evidence for each of `SIGMAS` from the log speed-ups of one set's pairs."""
    pairs = np.array(logs)
    grid = np.linspace(pairs.min() - 0.3, pairs.max() + 0.3, 121)
    return np.asarray(np.logaddexp.reduce(_log_likelihood(pairs, grid), axis=1))


def block_evidence(error: float) -> Floats:
    """Return the log evidence for each of `SIGMAS` of blocks: a noisy machine disturbs them too."""
    return -0.5 * (np.log(SIGMAS / (_MOST_OF_BLOCKS * error)).clip(min=0.0) / _BEYOND) ** 2


@dataclass(frozen=True, kw_only=True)
class BlockGain:
    """The median log speed-up of an arm's blocks in one launch, and its error."""

    gain: float
    error: float

    def spread(self, sigma: Floats | float, gain: Floats | float) -> Floats:
        """Return the standard deviation of the blocks' gain, where fresh launches have another."""
        return np.asarray(np.hypot(np.hypot(self.error, _BLOCK_PART * gain), BLOCK_SIGMA * sigma))

    @classmethod
    def of(cls, gains: Sequence[float], spread: float) -> "BlockGain":
        """Return the gain of blocks, one a round; `spread`: of a block over all arms' rounds."""
        error = 1.25 * max(spread, _LEAST_SPREAD) / math.sqrt(max(len(gains), 1))
        return cls(gain=float(np.median(gains)), error=math.hypot(_BLOCK_ERROR, error))


def claim_interval(
    logs: Sequence[float],
    sigma_log: Floats | None = None,
    own_error: float = 0.0,
    blocks: BlockGain | None = None,
) -> LogInterval:
    """Return the interval of a set's true log speed-up, by its own pairs, and blocks of a launch.

    `sigma_log`: weight of each of `SIGMAS` from everything but these pairs; None: the prior.
    `own_error`: of a pair by its own rounds, which comes on top.
    """
    pairs = np.array(logs)
    error_rate = _ERROR_RATE if len(pairs) > 1 else _ERROR_RATE_OF_ONE_PAIR
    span = 4.5 * max(0.05, float(np.ptp(pairs))) + 1.6
    grid = np.linspace(pairs.mean() - span, pairs.mean() + span, _POINTS)
    weight = sigma_prior_log() if sigma_log is None else sigma_log
    log = weight[:, None] + _log_likelihood(pairs, grid, own_error)
    if blocks is not None:
        spread = blocks.spread(SIGMAS[:, None], grid)
        log += np.log(error_density(blocks.gain - grid, spread) + _SAYS_NOTHING)
    mass = np.exp(log - log.max()).sum(axis=0)
    total = np.cumsum(mass) / mass.sum()
    low, middle, high = np.interp([error_rate / 2, 0.5, 1 - error_rate / 2], total, grid)
    return LogInterval(estimate=float(middle), low=float(low), high=float(high))


def _log_likelihood(pairs: Floats, grid: Floats, own_error: float = 0.0) -> Floats:
    """Return the log likelihood of pairs for each sigma and each mean of a grid."""
    density = error_density(pairs[:, None, None] - grid, np.hypot(SIGMAS, own_error)[:, None])
    return np.asarray(np.log(np.maximum(density, 1e-300)).sum(axis=0))
