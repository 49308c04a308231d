"""Compares the losses of launches with and without a fix, in pairs of one seed. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from torchdoctor.schema import Interval, LaunchTiming, LossComparison
from torchdoctor.schema.figures import says_something, speedup
from torchdoctor.trials.compare import half_width, interval
from torchdoctor.trials.numerics import FEWEST_LOSSES, block_length, block_means

ENOUGH_PAIRS = 3
_LAST = 1 / 3  # of a launch, whose loss is compared

Pair = tuple[LaunchTiming, LaunchTiming]  # without and with the fix, with the same seed


class Shown(NamedTuple):
    """A verdict on pairs; the fields are those of `TrainingTrial`."""

    verdict: str
    sentence: str
    comparison: LossComparison | None = None


def compare_losses(pairs: Sequence[Pair], backwards_per_step: float = 1.0) -> Shown:
    """Return whether the loss differs by more than the seed alone makes it.

    Of each pair, both launches had the same seed, and so the same samples.
    """
    if wrong := _not_comparable(pairs):
        return Shown("shows-nothing", wrong)
    columns = [[np.array(_finite(t.losses)) for t in pair] for pair in pairs]
    comparison = _figures(pairs, columns, backwards_per_step)
    verdict, clause = _judge(pairs, columns, comparison)
    return Shown(verdict, f"{clause}{_step_time(comparison.step_speedup)}.", comparison)


def _judge(
    pairs: Sequence[Pair], columns: Sequence[Sequence[np.ndarray]], figures: LossComparison
) -> tuple[str, str]:
    if figures.without is None or figures.with_fix is None:
        return _broken(figures, columns)
    steps = f"{figures.steps} steps"
    seeds = "1 seed" if len(pairs) == 1 else f"{len(pairs)} seeds"
    if all(np.array_equal(without, with_fix) for without, with_fix in columns):
        return "no-difference", f"the losses of {steps} are the same bit by bit ({seeds})"
    clause = (
        f"loss in the last third of {steps} {figures.with_fix:.4g} with it, {figures.without:.4g} "
        f"without, over the same samples ({seeds}"
    )
    difference = figures.difference
    spread = figures.seeds_spread
    if difference is None or spread is None:
        return "shows-nothing", f"{clause}): one seed says nothing of the noise"
    clause += f", which alone spread it by {spread:.2g})"
    if not spread > 0:
        why = "other seeds do not change this program's losses, so its noise is not known"
        return "shows-nothing", f"{clause}: {why}"
    if len(pairs) < ENOUGH_PAIRS:
        why = f"fewer than {ENOUGH_PAIRS} pairs show no difference, and rule out none"
        return "shows-nothing", f"{clause}: {why}"
    assert figures.low is not None
    assert figures.high is not None
    sure = figures.low > 0 or figures.high < 0
    if not sure or abs(difference) <= spread:
        return "no-difference", f"{clause}: shows no difference"
    better = difference < 0
    clause += f": {'lower' if better else 'higher'} by {abs(difference):.2g}"
    clause += f" (95 % interval {figures.low:.2g} to {figures.high:.2g})"
    return "better" if better else "worse", clause


def _not_comparable(pairs: Sequence[Pair]) -> str | None:
    for without, with_fix in pairs:
        length = min(len(without.fingerprints), len(with_fix.fingerprints))
        if without.fingerprints[:length] != with_fix.fingerprints[:length]:
            return "the launches did not see the same samples."
        both = (without.losses, with_fix.losses)
        if all(losses and losses[-1] is None and _skips(losses) for losses in both):
            return "there are no losses to compare: not every backward begins at a single number."
        fewest = min(len(_finite(without.losses)), len(_finite(with_fix.losses)))
        if fewest < FEWEST_LOSSES and not _ends_broken(without) and not _ends_broken(with_fix):
            return f"{fewest} losses to compare, at least {FEWEST_LOSSES} are needed."
    return None


def _skips(losses: Sequence[float | None]) -> bool:
    """Return True if losses are missing between two that are known, or none is known."""
    numbers = [number for number, loss in enumerate(losses) if loss is not None]
    return not numbers or None in losses[: numbers[-1]]


def _finite(losses: Sequence[float | None]) -> list[float]:
    """Return the losses before the first that is not finite, or missing with none after it."""
    last = max(
        (i for i, loss in enumerate(losses) if loss is not None and math.isfinite(loss)), default=-1
    )
    finite = []
    for loss in losses[: last + 1]:
        if loss is not None and not math.isfinite(loss):
            break
        if loss is not None:
            finite.append(loss)
    return finite


def _ends_broken(timing: LaunchTiming) -> bool:
    """Return True if the last loss of a launch is missing or not finite."""
    losses = timing.losses
    return bool(losses) and (losses[-1] is None or not math.isfinite(losses[-1]))


def _figures(
    pairs: Sequence[Pair], columns: Sequence[Sequence[np.ndarray]], backwards_per_step: float
) -> LossComparison:
    broken = [any(_ends_broken(pair[side]) for pair in pairs) for side in (0, 1)]
    whole = [both[side] for both in columns for side in (0, 1) if not broken[side]]
    length = min((len(column) for column in whole), default=0)
    block = min(block_length(length, backwards_per_step), length)

    def last(column: np.ndarray) -> float:
        means = block_means(column[:length], block)
        return float(means[-max(1, round(_LAST * len(means))) :].mean())

    backwards = min(len(timing.losses) for pair in pairs for timing in pair)
    comparison = LossComparison(
        steps=round(backwards / max(backwards_per_step, 1e-9)),
        pairs=len(pairs),
        step_speedup=interval([math.log(fmean(a.step_s) / fmean(b.step_s)) for a, b in pairs]),
    )
    values = [None if broken[side] else [last(both[side]) for both in columns] for side in (0, 1)]
    means = [None if value is None else fmean(value) for value in values]
    comparison = replace(comparison, without=means[0], with_fix=means[1])
    without, with_fix = values
    if without is None or with_fix is None:
        return comparison
    apart = [b - a for a, b in zip(without, with_fix, strict=True)]
    low, high = _interval(apart)
    spread = max(without) - min(without) if len(without) > 1 else None
    return replace(comparison, difference=fmean(apart), low=low, high=high, seeds_spread=spread)


def _interval(apart: Sequence[float]) -> tuple[float | None, float | None]:
    half = half_width(apart)
    return (fmean(apart) - half, fmean(apart) + half) if math.isfinite(half) else (None, None)


def _broken(figures: LossComparison, columns: Sequence[Sequence[np.ndarray]]) -> tuple[str, str]:
    """Return the verdict and its clause if a side ends in losses that are not finite."""
    without, with_fix = (min(len(both[side]) for both in columns) + 1 for side in (0, 1))
    whole = f"all of {figures.steps} steps are"
    if figures.with_fix is not None:
        return "better", f"loss {without} is not finite without it; with it {whole}"
    if figures.without is not None:
        return "worse", f"loss {with_fix} is not finite with it; without it {whole}"
    clause = f"loss {without} is not finite without it, nor is loss {with_fix} with it"
    return "no-difference", clause


def _step_time(interval: Interval | None) -> str:
    if interval is None or not says_something(interval):
        return ""
    return f"; a step takes {speedup(interval.inverse)} as long"
