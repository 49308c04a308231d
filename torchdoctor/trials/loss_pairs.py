"""Compares the losses of launches with and without a fix, in pairs of one seed. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from torchdoctor.schema import Evidence, Interval, LaunchTiming, LossComparison, fact
from torchdoctor.schema.figures import says_something
from torchdoctor.trials.compare import half_width, interval
from torchdoctor.trials.numerics import FEWEST_LOSSES, block_length, block_means

ENOUGH_PAIRS = 3
_LAST = 1 / 3  # of a launch, whose loss is compared

Pair = tuple[LaunchTiming, LaunchTiming]  # without and with the fix, with the same seed


class Shown(NamedTuple):
    """A verdict on pairs; the fields are those of `TrainingTrial`."""

    verdict: str
    why: Evidence
    comparison: LossComparison | None = None


def compare_losses(pairs: Sequence[Pair], backwards_per_step: float = 1.0) -> Shown:
    """Return whether the loss differs by more than the seed alone makes it.

    Of each pair, both launches had the same seed, and so the same samples.
    """
    if wrong := _not_comparable(pairs):
        return Shown("shows-nothing", wrong)
    columns = [[np.array(_finite(t.losses)) for t in pair] for pair in pairs]
    comparison = _figures(pairs, columns, backwards_per_step)
    verdict, why = _judge(pairs, columns, comparison)
    values = {**why.values, "step_time": _step_time(comparison.step_speedup)}
    return Shown(verdict, replace(why, values=values), comparison)


def _judge(
    pairs: Sequence[Pair], columns: Sequence[Sequence[np.ndarray]], figures: LossComparison
) -> tuple[str, Evidence]:
    if figures.without is None or figures.with_fix is None:
        return _broken(figures, columns)
    if all(np.array_equal(without, with_fix) for without, with_fix in columns):
        why = fact("losses-of-pairs-identical", steps=figures.steps, pairs=len(pairs))
        return "no-difference", why

    def told(ident: str, **values: Any) -> Evidence:
        return fact(
            ident,
            steps=figures.steps,
            pairs=len(pairs),
            with_fix=figures.with_fix,
            without=figures.without,
            spread=figures.seeds_spread,
            **values,
        )

    difference = figures.difference
    spread = figures.seeds_spread
    if difference is None or spread is None:
        return "shows-nothing", told("loss-of-one-seed")
    if not spread > 0:
        return "shows-nothing", told("loss-without-spread")
    if len(pairs) < ENOUGH_PAIRS:
        return "shows-nothing", told("loss-of-few-pairs", fewest=ENOUGH_PAIRS)
    assert figures.low is not None
    assert figures.high is not None
    sure = figures.low > 0 or figures.high < 0
    if not sure or abs(difference) <= spread:
        return "no-difference", told("loss-no-difference")
    better = difference < 0
    why = told(
        "loss-lower" if better else "loss-higher",
        by=abs(difference),
        low=figures.low,
        high=figures.high,
    )
    return "better" if better else "worse", why


def _not_comparable(pairs: Sequence[Pair]) -> Evidence | None:
    for without, with_fix in pairs:
        length = min(len(without.fingerprints), len(with_fix.fingerprints))
        if without.fingerprints[:length] != with_fix.fingerprints[:length]:
            return fact("samples-of-pair-differ")
        both = (without.losses, with_fix.losses)
        if all(losses and losses[-1] is None and _skips(losses) for losses in both):
            return fact("losses-not-single-numbers")
        losses = min(len(_finite(without.losses)), len(_finite(with_fix.losses)))
        if losses < FEWEST_LOSSES and not _ends_broken(without) and not _ends_broken(with_fix):
            return fact("too-few-losses-of-pair", losses=losses, fewest=FEWEST_LOSSES)
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


def _broken(
    figures: LossComparison, columns: Sequence[Sequence[np.ndarray]]
) -> tuple[str, Evidence]:
    """Return the verdict and its reason if a side ends in losses that are not finite."""
    without, with_fix = (min(len(both[side]) for both in columns) + 1 for side in (0, 1))
    if figures.with_fix is not None:
        return "better", fact("loss-finite-with-it", number=without, steps=figures.steps)
    if figures.without is not None:
        return "worse", fact("loss-finite-without-it", number=with_fix, steps=figures.steps)
    return "no-difference", fact("loss-finite-with-neither", without=without, with_fix=with_fix)


def _step_time(interval: Interval | None) -> list[float] | None:
    """Return the time of a step with the fix over that without: low, estimate, high."""
    if interval is None or not says_something(interval):
        return None
    longer = interval.inverse
    return [longer.low, longer.estimate, longer.high]
