"""What short launches showed of advice on training: losses and rates, never a speed-up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchdoctor.words.interval import Interval


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """The loss while the learning rate rose from step to step; rates as the program writes them.

    `rates`, `losses`: the smoothed curve of the first launch, as far as losses were finite.
    """

    own_rate: float  # the program's
    lowest_rate: float  # tried
    highest_rate: float
    steps: int  # rates that were tried
    launches: int = 1  # with different seeds; the more cautious rates of them are given
    steepest_rate: float | None = None  # the loss falls fastest; None: it does not fall
    lowest_loss_rate: float | None = None  # it stops falling
    diverged_rate: float | None = None  # it has begun to diverge; None: at no rate
    max_rate: float | None = None  # for a schedule; None: the test does not show one
    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class LossComparison:
    """Launches with and without, over the same samples, by pairs with the same seed.

    Losses are means over the last third of each launch. `low`, `high`: 95 % t interval of
    `difference`; None below two pairs.
    """

    steps: int  # iterations of the shortest launch
    pairs: int
    without: float | None = None  # None: not finite
    with_fix: float | None = None
    difference: float | None = None  # with minus without, mean of the pairs
    low: float | None = None
    high: float | None = None
    seeds_spread: float | None = None  # of the untouched program: highest minus lowest seed
    step_speedup: Interval | None = None  # time of a step without over that with


@dataclass(frozen=True, kw_only=True)
class TrainingTrial:
    """Advice on training in short launches; see docs/decisions/training-advice-trials.md.

    verdict: "found" (a rate), "better", "worse", "no-difference", "shows-nothing", "not-decided",
    "failed", "not-tried".
    """

    fix: str
    kind: str  # "range test" | "loss"
    verdict: str
    sentence: str  # what came out, or why nothing did
    settings: dict[str, Any] = field(default_factory=dict)
    range_test: RangeTest | None = None
    comparison: LossComparison | None = None
    launches: int = 0  # of it; those of the untouched program serve all
    cost_s: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)  # what the fix noted in its last launch
