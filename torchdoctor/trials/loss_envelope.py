"""Compares the trends of loss curves, also with the band that other seeds span. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRIFT_SHARE = 0.05  # of the loss's own movement
DRIFT_NOISE = 0.5  # of the standard error of a block's mean
FARTHEST = 5.0  # standard deviations of one block
FARTHEST_TREND = 3.5  # of the mean over the last half


def block_length(losses: int, backwards_per_step: float = 1.0) -> int:
    """Return the losses in a block: about six blocks of whole iterations, at least four losses."""
    step = max(1, round(backwards_per_step))
    return max(4, step * max(1, losses // 6 // step))


def block_means(losses: np.ndarray, length: int) -> np.ndarray:
    """Return the mean loss of each whole block, shape (blocks,); at least one block."""
    blocks = max(1, len(losses) // length)
    return np.array([part.mean() for part in np.array_split(losses[: blocks * length], blocks)])


def block_error(losses: np.ndarray, length: int) -> np.ndarray:
    """Return the standard error of each block's mean by the losses' scatter, shape (blocks,)."""
    blocks = max(1, len(losses) // length)
    parts = np.array_split(losses[: blocks * length], blocks)
    # Neighbours' differences leave the trend out.
    return np.array([np.sqrt((np.diff(p) ** 2).mean() / 2 / len(p)) for p in parts])


def drift(ours: np.ndarray, theirs: np.ndarray, length: int) -> float:
    """Return how far two runs on the same batches drift apart; rounding may reach 1."""
    apart = np.abs(block_means(ours - theirs, length))
    means = block_means(theirs, length)
    allowed = DRIFT_SHARE * np.ptp(means) + DRIFT_NOISE * block_error(theirs, length)
    return float(np.where(apart > 0, apart / np.maximum(allowed, 1e-300), 0.0).max())


class Envelope:
    """The band of at least three runs of the untouched program with different seeds.

    Args:
        runs: loss curves of equal length, shape (losses,) each.
        length: losses in a block.
    """

    def __init__(self, runs: Sequence[np.ndarray], length: int) -> None:
        self.length = length
        means = np.stack([block_means(run, length) for run in runs])
        self.centre = means.mean(axis=0)
        self.of_centre = np.sqrt(1.0 + 1.0 / len(runs))
        error = np.sqrt(np.mean([block_error(run, length) ** 2 for run in runs], axis=0))
        error = np.maximum(error, 1e-12 + 1e-6 * np.abs(self.centre))
        # Few runs know the spread of one block badly; all blocks together know how many times
        # the batch noise it is.
        between = means.var(axis=0, ddof=1)
        ratio = np.sqrt(max(1.0, float(np.mean(between / error**2))))
        own = np.sqrt((between + (ratio * error) ** 2) / 2)
        self.spread = np.maximum(own, ratio * error)

    def distances(self, run: np.ndarray) -> np.ndarray:
        """Return each block's signed distance from the centre in standard deviations: (blocks,)."""
        apart = block_means(run, self.length) - self.centre
        distances: np.ndarray = apart / (self.spread * self.of_centre)
        return distances

    def outside(self, run: np.ndarray) -> str | None:
        """Return a clause that says where a run leaves the band; None: it stays inside."""
        distances = self.distances(run)
        worst = int(np.abs(distances).argmax())
        if abs(distances[worst]) > FARTHEST:
            begin = worst * self.length
            return (
                f"Losses {begin + 1} to {begin + self.length} are {abs(distances[worst]):.0f} "
                f"standard deviations {'above' if distances[worst] > 0 else 'below'} those"
            )
        trend = float(distances[len(distances) // 2 :].mean())
        if abs(trend) > FARTHEST_TREND:
            return (
                f"The later losses are {abs(trend):.1f} standard deviations "
                f"{'above' if trend > 0 else 'below'} those"
            )
        return None
