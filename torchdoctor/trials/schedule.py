"""What is launched next: the budget, how much of it each phase gets, and who goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

from torchdoctor.trials.compare import half_width, p_value, pooled_deviation, t_quantile

CONFIRM_PAIRS = 6  # fresh pairs for each finalist, where the budget allows
FEWEST_PAIRS = 4  # fewer do not confirm
FEWEST_BESIDE = 2  # pairs side by side, where there is no time for more
DECISIVE = 3  # fresh pairs side by side: enough for a plain gain, mostly
SCREEN_ROUNDS = 2
SEED_LAUNCHES = 2  # with other seeds, when a finalist's losses are not equal up to rounding
WORTH = 0.01  # a smaller gain is not recommended
MOST_FINALISTS = 6
NO_TIME = "the budget left no time for more"  # why a search ended, as reports say it
HOPELESS = 0.1  # slower than this after some pairs: the next candidate is worth more


_Item = TypeVar("_Item")


class BudgetEnded(Exception):  # noqa: N818 - a turn of events, not an error
    """The next launch would not end within the budget."""


class Budget:
    """Wall time for everything that is left to do.

    Args:
        seconds: None for no limit.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._began = clock()

    def now(self) -> float:
        """Seconds on the budget's clock; only differences mean something."""
        return self._clock()

    def elapsed(self) -> float:
        """Seconds since the budget began."""
        return self._clock() - self._began

    def left(self) -> float:
        """Seconds left, infinite without a limit; may be negative."""
        return math.inf if self.seconds is None else self.seconds - self.elapsed()


@dataclass(frozen=True, kw_only=True)
class Screening:
    """How many candidates, from the first, are screened in how many rounds; (0, 0): none."""

    candidates: int
    rounds: int


def plan_screening(
    expected_s: Sequence[float],
    baseline_s: float,
    left_s: float,
    least: int = 2,
    pairs_up: bool = False,
    again_s: Sequence[float] | None = None,
) -> Screening:
    """Screen as many candidates as leave time to confirm.

    Args:
        expected_s: seconds of a launch of each candidate, most promising first.
        baseline_s: of the untouched program.
        left_s: of the budget.
        least: fewer are not screened, but confirmed at once.
        pairs_up: each candidate is looked at once, in a pair side by side, which tells more than
            two rounds of launches one after the other do.
        again_s: seconds of each candidate's launches after the first; None: as of the first.
    """
    count, again_s = len(expected_s), expected_s if again_s is None else again_s
    if count < least:
        return Screening(candidates=0, rounds=0)
    pair_s = baseline_s + fmean(again_s)
    seeds_s = SEED_LAUNCHES * baseline_s
    two_and_stack = FEWEST_PAIRS * 3 * pair_s + seeds_s

    def cost(candidates: int, rounds: int = 1) -> float:
        baselines = candidates if pairs_up else 2
        first_s, later_s = sum(expected_s[:candidates]), sum(again_s[:candidates])
        return rounds * baselines * baseline_s + first_s + (rounds - 1) * later_s

    for rounds in range(1 if pairs_up else SCREEN_ROUNDS, 0, -1):
        if cost(count, rounds) + two_and_stack <= left_s:
            return Screening(candidates=count, rounds=rounds)

    def most(fewest_pairs: int) -> int:
        fits = [n for n in range(least, count + 1) if cost(n) + fewest_pairs * pair_s <= left_s]
        return max(fits, default=0)

    found = most(FEWEST_PAIRS)
    # Two pairs side by side may tell a gain that is worth having; without a look at most of the
    # others they are likely to be spent on what gains nothing.
    if pairs_up and 2 * found <= count:
        found = most(FEWEST_BESIDE)
    return Screening(candidates=found, rounds=min(found, 1))


@dataclass(frozen=True, kw_only=True)
class Screened:
    """One candidate after screening. `fix`: its settings compete.

    differences: as in `compare`, by the figure that decides; other: by the other one; within: of
    blocks within one launch, which have a noise of their own.
    """

    key: str
    fix: str
    differences: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    within: bool = False

    @property
    def gain(self) -> float:
        """What it gains by the figure that decides: the order among those kept."""
        return fmean(self.differences)

    @property
    def hope(self) -> float:
        """What it may gain, seen kindly: by the mean or the median step, whichever is larger.

        Somebody else's load hits a few steps of one launch and halves its mean. Who is wrongly
        kept is measured afresh; who is wrongly dropped is never seen again. Not an order: batches
        that arrive in bursts have a fine median, and a mean that they are paid by.
        """
        return max(fmean(found) for found in (self.differences, self.other) if found)


@dataclass(frozen=True, kw_only=True)
class Finalists:
    """Keys of candidates, best first: who looks worth confirming, and who may be all the same."""

    worth: list[str]
    others: list[str]  # measured afresh only where time is left and nobody has won


def choose_finalists(screened: Sequence[Screened]) -> Finalists:
    """The best setting of each fix that may win."""
    best: dict[str, Screened] = {}
    for one in screened:
        if not one.differences:
            continue
        rival = best.get(one.fix)
        if rival is None or one.gain > rival.gain:
            best[one.fix] = one
    ranked = sorted(best.values(), key=lambda one: one.gain, reverse=True)
    worth = [one for one in ranked if one.hope >= math.log1p(WORTH)][:MOST_FINALISTS]
    noise = {
        within: pooled_deviation([one.differences for one in screened if one.within == within])
        for within in (False, True)
    }
    # Other settings of a fix come after all other fixes, should the best one fail.
    others = [one for one in ranked if one not in worth]
    seconds = [one for one in screened if one.differences and one not in ranked]
    others += sorted(seconds, key=lambda one: one.gain, reverse=True)
    others = [one for one in others if _may_gain(one, *noise[one.within])]
    return Finalists(worth=[one.key for one in worth], others=[one.key for one in others])


def _may_gain(one: Screened, deviation: float, degrees: int) -> bool:
    """Whether the noise of screening is larger than what speaks against it."""
    if not degrees:
        return one.hope > -math.log1p(HOPELESS)  # one look at each says nothing of the noise
    error = t_quantile(0.9, degrees) * deviation / math.sqrt(len(one.differences))
    return one.hope + error > math.log1p(2 * WORTH)


def hopeless(differences: Sequence[float], planned: int) -> bool:
    """Whether the pairs that are left can hardly make a gain of what was seen.

    Args:
        differences: of the pairs so far.
        planned: pairs in all.
    """
    seen = len(differences)
    if seen < 2 or seen >= planned:
        return False
    # Every pair against it, or a mean so low that the others would have to be as far above.
    return max(differences) < 0 or fmean(differences) < -math.log1p(HOPELESS)


def p_of_looks(differences: Sequence[float], looked: Sequence[float] = ()) -> float:
    """p of pairs that were looked at, two by two, beyond those planned: each look is a chance.

    `looked`: as in `compare.half_width`.
    """
    looks = 1 + max(len(differences) - CONFIRM_PAIRS, 0) / 2
    return min(1.0, looks * p_value(differences, looked))


def no_gain(differences: Sequence[float]) -> bool:
    """Whether even the upper end of the interval is no gain worth an edit: a tie."""
    if len(differences) < 2:
        return False
    return fmean(differences) + half_width(differences, 0.8) < math.log1p(WORTH)


def without_dearest(items: Sequence[_Item], seconds: Callable[[_Item], float]) -> list[_Item]:
    """All but the one that takes longest; of several the last, which promises least."""
    dearest = max(range(len(items)), key=lambda number: (seconds(items[number]), number))
    return [one for number, one in enumerate(items) if number != dearest]


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """How many finalists, from the first, are measured in how many pairs each."""

    finalists: int
    pairs: int


def plan_confirmation(
    expected_s: Sequence[float],
    baseline_s: float,
    left_s: float,
    pairs_up: bool = False,
    again_s: Sequence[float] | None = None,
) -> Confirmation:
    """Confirm as many finalists as leave time to measure them together.

    Args:
        expected_s: seconds of a launch of each finalist, best first; at least one.
        baseline_s: of the untouched program.
        left_s: of the budget.
        pairs_up: each finalist has a baseline of its own, instead of two for all in a round.
        again_s: as of `plan_screening`.
    """
    again_s = expected_s if again_s is None else again_s
    once_s = [first - later for first, later in zip(expected_s, again_s, strict=True)]
    stack_s = FEWEST_PAIRS * (baseline_s + max(again_s)) + max(once_s)  # a set compiles anew
    for count in range(min(MOST_FINALISTS, len(expected_s)), 1, -1):
        round_s = (count if pairs_up else 2) * baseline_s + sum(again_s[:count])
        free_s = left_s - sum(once_s[:count])
        # Two finalists without time for both together are still two answers.
        reserve_s = stack_s if count > 2 or FEWEST_PAIRS * round_s + stack_s <= free_s else 0.0
        pairs = _whole((free_s - reserve_s) / round_s)
        if pairs >= FEWEST_PAIRS:
            return Confirmation(finalists=count, pairs=pairs)
    pairs = _whole((left_s - once_s[0]) / (baseline_s + again_s[0]))
    # An odd pair breaks the balance of ABBA.
    return Confirmation(finalists=1, pairs=pairs - pairs % 2 if pairs > 2 else pairs)


def _whole(pairs: float) -> int:
    return int(min(CONFIRM_PAIRS, max(0.0, pairs)))
