"""Losses of launches with and without a fix, by pairs with one seed -> what they show. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from torchdoctor.trials.compare import CONFIDENCE, interval, t_quantile
from torchdoctor.trials.loss_envelope import block_length, block_means
from torchdoctor.trials.numerics import FEWEST_LOSSES
from torchdoctor.words import Interval, LaunchTiming, LossComparison
from torchdoctor.words.figures import says_something, speedup_words

ENOUGH_PAIRS = 3
_LAST = 1 / 3  # of a launch, whose loss is compared

Pair = tuple[LaunchTiming, LaunchTiming]  # without, with; of one seed


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What pairs show: fields as in `records.TrainingTrial`."""

    verdict: str
    sentence: str
    comparison: LossComparison | None = None


def compare_losses(pairs: Sequence[Pair], backwards_per_step: float = 1.0) -> Shown:
    """Whether the loss differs by more than the seed alone makes it.

    Args:
        pairs: at least one; each with the same seed, and so over the same samples.
        backwards_per_step: of one iteration.
    """
    if wrong := _not_comparable(pairs):
        return Shown(verdict="shows-nothing", sentence=wrong)
    columns = [[np.array(_known(t.losses)) for t in pair] for pair in pairs]
    found = _figures(pairs, columns, backwards_per_step)
    steps, time = f"{found.steps} steps", _time(found.step_speedup)
    if found.without is None or found.with_fix is None:
        return _broken(found, columns, steps, time)
    if all(np.array_equal(one, other) for one, other in columns):
        said = f"the losses of {steps} are the same bit by bit ({_seeds(pairs)})"
        return Shown(verdict="no-difference", sentence=f"{said}{time}.", comparison=found)
    said = (
        f"loss in the last third of {steps} {found.with_fix:.4g} with it, {found.without:.4g} "
        f"without, over the same samples ({_seeds(pairs)}"
    )
    if found.difference is None or found.seeds_spread is None:
        return Shown(
            verdict="shows-nothing",
            sentence=f"{said}): one seed says nothing of the noise{time}.",
            comparison=found,
        )
    said += f", which alone spread it by {found.seeds_spread:.2g})"
    if not found.seeds_spread > 0:
        why = "other seeds do not change this program's losses, so its noise is not known"
        return Shown(verdict="shows-nothing", sentence=f"{said}: {why}{time}.", comparison=found)
    if len(pairs) < ENOUGH_PAIRS:
        why = f"fewer than {ENOUGH_PAIRS} pairs show no difference, and rule out none"
        return Shown(verdict="shows-nothing", sentence=f"{said}: {why}{time}.", comparison=found)
    assert found.low is not None
    assert found.high is not None
    sure = found.low > 0 or found.high < 0
    if not sure or abs(found.difference) <= found.seeds_spread:
        said += ": shows no difference"
        return Shown(verdict="no-difference", sentence=f"{said}{time}.", comparison=found)
    better = found.difference < 0
    said += f": {'lower' if better else 'higher'} by {abs(found.difference):.2g}"
    said += f" (95 % interval {found.low:.2g} to {found.high:.2g})"
    return Shown(
        verdict="better" if better else "worse", sentence=f"{said}{time}.", comparison=found
    )


def _seeds(pairs: Sequence[Pair]) -> str:
    return "1 seed" if len(pairs) == 1 else f"{len(pairs)} seeds"


def _not_comparable(pairs: Sequence[Pair]) -> str | None:
    for without, with_fix in pairs:
        known = min(len(without.fingerprints), len(with_fix.fingerprints))
        if without.fingerprints[:known] != with_fix.fingerprints[:known]:
            return "the launches did not see the same samples."
        if unknown := _unknown(without, with_fix):
            return unknown
        fewest = min(len(_known(without.losses)), len(_known(with_fix.losses)))
        if fewest < FEWEST_LOSSES and not _ends_broken(without) and not _ends_broken(with_fix):
            return f"{fewest} losses to compare, at least {FEWEST_LOSSES} are needed."
    return None


def _unknown(without: LaunchTiming, with_fix: LaunchTiming) -> str | None:
    """Why two launches that end without losses have none to compare, rather than broken ones.

    A backward without a scalar loss has none either. Where that is so, it is so on both sides.
    """
    both = (without.losses, with_fix.losses)
    if not all(losses and losses[-1] is None for losses in both):
        return None
    if all(loss is None for losses in both for loss in losses):
        return "there are no losses to compare: none is known, as of a backward of several numbers."
    if all(_skips(losses) for losses in both):
        return "there are no losses to compare: not every backward begins at a single number."
    return None


def _skips(losses: Sequence[float | None]) -> bool:
    """Whether losses are missing between others."""
    last = max((i for i, loss in enumerate(losses) if loss is not None), default=0)
    return None in losses[:last]


def _known(losses: Sequence[float | None]) -> list[float]:
    """Losses up to the first that is not finite; a backward without a scalar loss has none.

    Where no finite one follows, a missing one is a loss that overflowed.
    """
    last = max((i for i, x in enumerate(losses) if x is not None and math.isfinite(x)), default=-1)
    found = []
    for loss in losses[: last + 1]:
        if loss is not None and not math.isfinite(loss):
            break
        if loss is not None:
            found.append(loss)
    return found


def _ends_broken(timing: LaunchTiming) -> bool:
    """Whether its losses stop being finite."""
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
    found = LossComparison(
        steps=round(backwards / max(backwards_per_step, 1e-9)),
        pairs=len(pairs),
        step_speedup=_step_speedup(pairs),
    )
    values = [None if broken[side] else [last(both[side]) for both in columns] for side in (0, 1)]
    means = [None if known is None else fmean(known) for known in values]
    found = replace(found, without=means[0], with_fix=means[1])
    without, with_fix = values
    if without is None or with_fix is None:
        return found
    apart = [b - a for a, b in zip(without, with_fix, strict=True)]
    low, high = _interval(apart)
    spread = max(without) - min(without) if len(without) > 1 else None
    return replace(found, difference=fmean(apart), low=low, high=high, seeds_spread=spread)


def _interval(apart: Sequence[float]) -> tuple[float | None, float | None]:
    if len(apart) < 2:
        return None, None
    error = float(np.std(apart, ddof=1)) / math.sqrt(len(apart))
    half = t_quantile(0.5 + CONFIDENCE / 2, len(apart) - 1) * error
    return fmean(apart) - half, fmean(apart) + half


def _step_speedup(pairs: Sequence[Pair]) -> Interval | None:
    return interval([math.log(fmean(a.step_s)) - math.log(fmean(b.step_s)) for a, b in pairs])


def _broken(
    found: LossComparison, columns: Sequence[Sequence[np.ndarray]], steps: str, time: str
) -> Shown:
    """One side or both end in losses that are not finite."""
    first = [min(len(both[side]) for both in columns) + 1 for side in (0, 1)]
    if found.without is None and found.with_fix is None:
        said = f"loss {first[0]} is not finite without it, nor is loss {first[1]} with it"
        return Shown(verdict="no-difference", sentence=f"{said}{time}.", comparison=found)
    side, verdict = ("without", "better") if found.without is None else ("with", "worse")
    at = first[0] if found.without is None else first[1]
    other = "with" if side == "without" else "without"
    said = f"loss {at} is not finite {side} it; {other} it all of {steps} are"
    return Shown(verdict=verdict, sentence=f"{said}{time}.", comparison=found)


def _time(found: Interval | None) -> str:
    if found is None or not says_something(found):
        return ""
    slower = found.inverse
    figure, between = speedup_words(slower)
    return f"; a step takes {figure} as long ({between})"
