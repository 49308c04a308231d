"""Decides by one rule what to measure next, when to stop, and what to claim. Pure.

The next measurement is the one after which the best claim still in reach is worth most for each
second. A claim rests on pairs of that very set of fixes, and on its blocks within one launch.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np

from torchdoctor.pairs.engine import CACHED
from torchdoctor.trials.beliefs import LEAST_GAIN, SAMPLES, Beliefs, Members
from torchdoctor.trials.claims import TAIL_SHARE, TAIL_WIDTH, Floats, LogInterval, error_density
from torchdoctor.trials.log import SEED_LAUNCHES

WORTH = 0.01  # log speed-up that one more edit has to gain
LEAST_OF_RISKY = math.log1p(0.03)  # least gain of a member of lower precision
SURE = 0.025  # probability of less, where a gain is called sure
ALIKE = math.log1p(0.03)  # two sets this close are equally fast: the smaller one is recommended
ADDS = 0.92  # probability that a member adds, if the set without it was measured
LIKELY = 0.8  # the same while it is planned: averages of few samples are less sure than pairs
PROVEN = 0.95  # the same, if it was measured by itself alone
MAY_ADD = 0.1  # probability that makes an unproven arm worth a pair with the best set
MOST_PAIRS = 10  # pairs that a plan looks ahead
ENOUGH_PAIRS = 4  # a figure of so many pairs is not refined any further
_PRICE = 0.01  # log speed-up that all of the budget has to buy, or the rest is given back
_NO_RATE = 1e-6  # a gain for each second that is rounding
_FLOOR = 0.3 * WORTH  # less is no reason for another measurement
_HURRY = 0.2  # part of a claim's worth that is lost if it takes all of the budget
_PAIR = 2.05  # launches that a pair takes
_LOOKS = (1, 3)  # pairs that a measurement takes: several may decide what one cannot
_ENDS = 14  # sets that a plan may end with
_BINS = 8
_SWITCH_ROUNDS, _SWITCH_LAUNCHES = (3, 5), 2
PATCH_PAIRS = 2
_FAR = 0.2  # log speed-up beyond the claim that is worth more than anything else once measured
_RESERVE_PAIRS = 8  # a budget of fewer pairs keeps no time for the patch


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Seconds of measurements."""

    budget_s: float  # of the whole search
    left_s: float  # of it
    launch_s: float  # of half a pair of the untouched program
    once_s: Mapping[str, float] = field(default_factory=dict)  # measured one-time costs, by arm
    # Of a launch in which arms take turns for so many rounds; None: this program cannot switch.
    switch_s: Callable[[Sequence[str], int], float] | None = None
    patch: bool = False  # the patched program is measured too


@dataclass(frozen=True, kw_only=True)
class Action:
    """The next step: "pair", "switch", "seeds" or "patch", or "stop" with its reason."""

    kind: str
    members: Members = frozenset()  # of the set that a pair is for, or whose patch is measured
    arms: tuple[str, ...] = ()  # that a switching launch takes turns with, for `rounds` rounds
    rounds: int = 0
    reason: str = ""  # "decided", "nothing to gain" or "time"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A set that is faster for sure; `gain`: its expected log speed-up under the prior."""

    members: Members
    interval: LogInterval
    pairs: int
    gain: float

    @property
    def is_narrow(self) -> bool:
        """Return whether its figure is known well enough to be shown."""
        wide = max(0.05, 0.25 * self.interval.estimate)
        return self.interval.half_width <= wide or self.pairs >= ENOUGH_PAIRS


@dataclass(frozen=True)
class _Option:
    """A measurement, what the best claim is worth after it, and its seconds."""

    action: Action
    worth: float
    cost_s: float


class SearchPolicy:
    """Makes a decision by the beliefs in every arm and the prices of the next measurements."""

    def __init__(self, beliefs: Beliefs, prices: Prices) -> None:
        self.beliefs, self.prices, self.results = beliefs, prices, beliefs.results
        self._alive = [name for name in beliefs.arms if name not in self.results.failed]
        errors = _pair_errors()[0]
        self._random = np.random.default_rng(SAMPLES)
        self._errors = errors[self._random.permutation(SAMPLES)]
        self._plans: dict[tuple[Members, int], tuple[Floats, Floats]] = {}
        reserve_s = _PAIR * prices.launch_s if prices.patch else 0.0
        kept = prices.budget_s >= _RESERVE_PAIRS * reserve_s and not self._is_worth_it(reserve_s)
        self._left_s = prices.left_s - reserve_s * kept

    def _is_worth_it(self, reserve_s: float) -> bool:
        """Return whether a set lacks just the patch's time, and nothing is claimed, or far less."""
        best, left_s = next(iter(self._ends), frozenset()), self.prices.left_s
        lacks = left_s - reserve_s < self.pair_s(best) <= left_s
        return lacks and (not self.claims or self._is_far(best))

    def _is_far(self, members: Members) -> bool:
        """Return whether a set is expected to gain far more than what is claimed."""
        return self.beliefs.mean_gain(members) > self._claimed + _FAR

    # -- claims

    @cached_property
    def claims(self) -> list[Claim]:
        """Return the sets that may be recommended, the best first."""
        claims = []
        for members, logs in self.results.pairs.items():
            opened = members in self.results.open_training and self.results.seeds_done
            if not self._may_run(members) or opened or not self._is_earned(members):
                continue
            interval = self.beliefs.claim(members)
            if interval is None or interval.low <= 0 or interval.estimate <= WORTH:
                continue
            gain = min(max(self.beliefs.mean_gain(members), interval.low), interval.high)
            claims.append(Claim(members=members, interval=interval, pairs=len(logs), gain=gain))
        claims.sort(key=lambda claim: -claim.gain)
        alike = [claim for claim in claims if claim.gain >= claims[0].gain - ALIKE]
        arms = self.beliefs.arms
        alike.sort(key=lambda x: max(arms[name].risk for name in x.members))
        alike.sort(key=lambda x: sum(len(arms[name].fixes) for name in x.members))
        return [*alike, *claims[len(alike) :]]

    def _is_earned(self, members: Members) -> bool:
        """Return whether each member gains something that is worth its edit and its risk."""
        for name in members:
            alone, arm = frozenset([name]), self.beliefs.arms[name]
            least = LEAST_OF_RISKY if arm.risk >= 2 else 0.0
            adds = self.beliefs.p_adds(members, name) >= self._needed(members, name)
            own = self.beliefs.claim(alone) if least and not arm.plain else None
            shown = not least or (own is not None and own.low >= least)
            if adds and (shown or self.beliefs.quantile(alone, 1 - ADDS, arm.plain) >= least):
                continue
            # Of what another member left it may gain more than of the whole step.
            without = members - alone | arm.plain
            measured = without in self.results.pairs
            if not measured or self.beliefs.quantile(members, SURE, without) <= least + LEAST_GAIN:
                return False
        return True

    def _needed(
        self, members: Members, name: str, measured: Members | None = None, adds: float = ADDS
    ) -> float:
        """Return the probability with which a member has to add; `measured`: a set that will be.

        A set that holds a member is no proof of one never measured by itself. `adds`: where the set
        without it, or without what goes with it, was measured.
        """
        alone, known = frozenset([name]), {frozenset(), measured, *self.results.pairs}
        plain = self.beliefs.arms[name].plain
        proven = plain in known and (alone in known or name in self.results.blocks)
        return adds if members - alone | plain in known else PROVEN if proven else math.inf

    # -- costs

    def pair_s(self, members: Members, pairs: int = 1) -> float:
        """Return the seconds of the next pairs of a set."""
        arms = [self.beliefs.arms[name] for name in members]
        once = [self.prices.once_s.get(arm.name, arm.once_s) for arm in arms]
        again_s = CACHED * max(once, default=0.0)
        first_s = again_s if members in self.results.pairs else max(once, default=0.0)
        reseeds = not self.results.seeds_done and any(arm.may_reseed for arm in arms)
        each_s = _PAIR * self.prices.launch_s + again_s
        return pairs * each_s + max(0.0, first_s - again_s) + reseeds * self.seeds_s

    @property
    def seeds_s(self) -> float:
        """Return the seconds of launches of the untouched program with other seeds."""
        return SEED_LAUNCHES * self.prices.launch_s

    # -- the next measurement

    def next(self) -> Action:
        """Return the next action."""
        claim = self.claims[0] if self.claims else None
        opened = claim is not None and claim.members in self.results.open_training
        if opened and self.seeds_s <= self.prices.left_s:
            return Action(kind="seeds")
        if action := self._best_measurement():
            return action
        patched = self.results.patch_pairs >= PATCH_PAIRS or not self.prices.patch
        if claim and not patched and self.pair_s(claim.members) <= self.prices.left_s:
            return Action(kind="patch", members=claim.members)
        return Action(kind="stop", reason=self._why_stop())

    def _why_stop(self) -> str:
        """Return "time" where more of it would be worth having."""
        short = any(map(self.lacks_time, self.targets))
        return "time" if short else "decided" if self.claims else "nothing to gain"

    def lacks_time(self, members: Members) -> bool:
        """Return whether pairs of a set would be worth having, and do not fit."""
        worth = float(self.beliefs.weight @ self.reach(members, math.inf))
        return self.pair_s(members) > self._left_s and worth > self._claimed + WORTH

    def _best_measurement(self) -> Action | None:
        """Return what adds most for each second; None: nothing is worth its time."""
        for pairs in _LOOKS:
            options = list(self._pair_options(pairs))
            tried = [x for x in options if all(map(self.results.measured, x.action.members))]
            new = [x for x in tried if x.action.members not in self.results.pairs]
            first = [x for x in new if self._is_far(x.action.members)]
            options += self._switch_options() if pairs == 1 else []
            if action := self._best_of(first) or self._best_of(options):
                return action
        claim = self.claims[0] if self.claims else None
        if claim and not claim.is_narrow and self.pair_s(claim.members) <= self._left_s:
            return Action(kind="pair", members=claim.members)
        # As a hint, if more time would be worth having.
        best = next(iter(self._ends), frozenset())
        known = claim or len(self.results.pairs.get(best, ())) >= ENOUGH_PAIRS
        if known or self.pair_s(best) > self._left_s or self._worth_now(math.inf) <= WORTH:
            return None
        return Action(kind="pair", members=best)

    def _best_of(self, options: Sequence[_Option]) -> Action | None:
        """Return the action of the option that adds most for each second, if it adds enough."""
        if not options:
            return None
        now = self._worth_now(self._left_s)
        rates = [(option.worth - now) / option.cost_s for option in options]
        best = options[int(np.argmax(rates))]
        if max(rates) <= _NO_RATE:  # no measurement is worth its time: take the claim in reach
            reached = self._reached(self._left_s)
            nearly = {x: round(x.worth, 4) for x in options}
            best = max(options, key=lambda x: (nearly[x], reached.get(x.action.members, 0.0)))
        least = max(_PRICE * best.cost_s / self.prices.budget_s, _FLOOR + self._luck)
        return best.action if best.worth + self._luck - self._claimed >= least else None

    @property
    def _claimed(self) -> float:
        return max([0.0, *(claim.gain - WORTH * len(claim.members) for claim in self.claims)])

    @cached_property
    def _claimed_gain(self) -> Floats:
        if not self.claims:
            return np.zeros(SAMPLES)
        best = max(self.claims, key=lambda claim: claim.gain - WORTH * len(claim.members))
        return self.beliefs.gain(best.members) - WORTH * len(best.members)

    def _worth_now(self, left_s: float) -> float:
        """Return what the best claim is worth that pairs of one set alone can reach."""
        return max([self._claimed, *self._reached(left_s).values()])

    def _reached(self, left_s: float) -> dict[Members, float]:
        return {x: float(self.beliefs.weight @ self.reach(x, left_s)) for x in self.targets}

    @cached_property
    def best_set(self) -> Members:
        """Return the set of all arms that are believed to add, chosen by how much each adds."""
        chosen: Members = frozenset()
        usable = [name for name in self._alive if name not in self._suspects]
        while True:
            gains = {
                name: self.beliefs.mean_gain(chosen | {name})
                for name in usable
                if self._fits(chosen, name) and self.beliefs.p_adds(chosen, name) >= LIKELY
            }
            best = max(gains, key=lambda name: gains[name], default=None)
            gained = self.beliefs.mean_gain(chosen) if chosen else 0.0
            if best is None or gains[best] - gained < 1.5 * WORTH:
                return chosen
            chosen = chosen | {best}

    def _fits(self, members: Members, name: str) -> bool:
        return not any(self.beliefs.exclude(name, member) for member in members)

    @cached_property
    def _suspects(self) -> set[str]:
        """Return members of failed sets that never ran alone, which they must before they join."""
        suspects = {name for members in self.results.failed_sets for name in members}
        return {name for name in suspects if frozenset([name]) not in self.results.pairs}

    @cached_property
    def targets(self) -> list[Members]:
        """Return the sets that a pair may be spent on."""
        wanted = (members for members in self._targets() if self._may_run(members))
        return [x for x in dict.fromkeys(wanted) if x not in self.results.too_dear]

    def _may_run(self, members: Members) -> bool:
        """Return whether no member failed, and no set of some of them."""
        failed = any(failed <= members for failed in self.results.failed_sets)
        return bool(members) and members <= set(self._alive) and not failed

    def _targets(self) -> Iterator[Members]:
        yield from (frozenset([name]) for name in self._alive)
        best = self.best_set
        if len(best) > 1:
            yield best
            yield from (best - {name} for name in sorted(best))
        if best:
            for name in self._alive:
                joins = name not in self._suspects and self._fits(best, name)
                if joins and self.beliefs.p_adds(best, name) >= MAY_ADD:
                    yield best | {name}
        for members in self.results.pairs:
            known = members <= set(self._alive)
            if known and all(self.beliefs.p_adds(members, name) > MAY_ADD for name in members):
                yield members

    # -- the worth of a plan

    def reach(self, members: Members, left_s: float, paid: int = 0) -> Floats:
        """Return for each sample what a set is worth if the time left goes to its pairs.

        It is worth nothing where these would not show it. `paid`: more pairs that are measured.
        """
        if (members, paid) not in self._plans:
            self._plans[members, paid] = self._plan(members, paid)
        values, averages = self._plans[members, paid]
        costs_s = self._costs_s(members, paid)
        affordable = sum(cost_s <= left_s for cost_s in costs_s)
        return np.asarray(values[int(np.argmax(averages[:affordable]))])

    def _costs_s(self, members: Members, paid: int) -> list[float]:
        """Return the seconds of 0, 1, 2, ... more pairs; only the first of all costs more."""
        once_s, twice_s = self.pair_s(members), self.pair_s(members, 2)
        first_s, each_s = twice_s - once_s if paid else once_s, twice_s - once_s
        return [0.0, *(first_s + number * each_s for number in range(MOST_PAIRS))]

    def _plan(self, members: Members, paid: int) -> tuple[Floats, Floats]:
        """Return what 0, 1, 2, ... more pairs are worth, for each sample and on average."""
        gain, logs = self.beliefs.gain(members), self.results.pairs.get(members, ())
        fresh = np.arange(MOST_PAIRS + 1) + paid
        pairs = fresh + len(logs)
        middle = float(np.median(logs)) if logs else 0.0
        error = self.beliefs.sigma[:, None] * self._errors[:, fresh.clip(max=MOST_PAIRS)]
        total = fresh * (gain[:, None] + error) + len(logs) * middle
        wide = self._widths[:, pairs.clip(max=MOST_PAIRS)]
        known, alike = pairs.clip(min=1), np.zeros((SAMPLES, 1))  # what blocks are worth, in pairs
        if blocks := self.beliefs.blocks(members):
            alike = (self.beliefs.sigma / blocks.spread(self.beliefs.sigma, gain))[:, None] ** 2
            total = total + alike * blocks.gain
        shown = (total > wide * np.sqrt(known * (known + alike))) & (pairs > 0)
        late = 1.0 - _HURRY * np.array(self._costs_s(members, paid)) / self.prices.budget_s
        worth = (gain - WORTH * len(members))[:, None] * late
        values = np.where(shown, worth, 0.0).T
        averages = values @ self.beliefs.weight
        averages[0] *= paid > 0 or not self._is_far(members)  # such a set lacks a pair
        values[0] *= averages[0] > 0  # nothing has to be claimed
        return values, np.maximum(averages, 0.0)

    @cached_property
    def _widths(self) -> Floats:
        """Return half the interval's width by sample and pairs: a few pairs hardly show sigma."""
        together = np.full(MOST_PAIRS + 1, math.inf)
        for pairs in range(1, MOST_PAIRS + 1):
            spread = np.abs(self.beliefs.sigma * self._errors[:, pairs])
            order = np.argsort(spread)
            total = np.cumsum(self.beliefs.weight[order])
            level = 0.98 if pairs == 1 else 0.96
            together[pairs] = spread[order][min(int(np.searchsorted(total, level)), SAMPLES - 1)]
        known = 1.0 - 1.0 / np.arange(MOST_PAIRS + 1).clip(1) ** 2.0
        unknown = np.where(known < 1, (1 - known) * together, 0.0)
        own = 1.1 * self.beliefs.sigma[:, None] * _pair_errors()[1][None, :]
        return np.asarray(known * own + unknown)

    @cached_property
    def _ends(self) -> list[Members]:
        """Return the sets that a plan may end with, the most promising first."""
        weight, gain = self.beliefs.weight, self.beliefs.gain
        return sorted(self.targets, key=lambda x: -float(weight @ gain(x).clip(min=0.0)))[:_ENDS]

    @cached_property
    def _luck(self) -> float:
        """Return the gain that pure noise seems to add, as the best of averages looks good."""
        values = np.array([self.reach(end, self._left_s) for end in self._ends])
        signals = [self._random.random(SAMPLES) for _ in range(3)]
        after = [self._expected(signal, self._ends, values) for signal in signals]
        before: float = max([self._claimed, *(values @ self.beliefs.weight)])
        return max(0.0, sum(after) / len(after) - before)

    def _expected(
        self, signal: Floats, ends: list[Members], values: Floats, measured: Members | None = None
    ) -> float:
        """Return the expected worth of the best end once a signal is known.

        Samples alike in the signal are averaged. An end counts where each member then adds likely
        enough to be worth pairs, or where it is claimed already.
        """
        order = np.argsort(signal)
        weight = self.beliefs.weight[order]
        cuts = np.linspace(0, SAMPLES, _BINS + 1)[:-1].astype(int)
        total = np.add.reduceat(weight, cuts)

        def averages(rows: Floats) -> Floats:
            sums = np.add.reduceat(rows[:, order] * weight, cuts, axis=1)
            return np.asarray(sums / np.maximum(total, 1e-12))

        means = averages(values)
        for row, end in enumerate(ends):
            if len(end) > 1 or any(self.beliefs.arms[name].plain for name in end):
                needed = [self._needed(end, name, measured, LIKELY) for name in sorted(end)]
                likely = averages(self._adding[end]) >= np.array(needed)[:, None]
                means[row] *= likely.all(axis=0)
        claimed = averages(self._claimed_gain[None, :])[0]
        return float(total @ np.maximum(means.max(axis=0), np.maximum(claimed, 0.0)))

    @cached_property
    def _adding(self) -> dict[Members, Floats]:
        adding = self.beliefs.adding
        return {x: np.array([adding(x, name) for name in sorted(x)], float) for x in self.targets}

    def _pair_options(self, pairs: int) -> Iterator[_Option]:
        for members in self.targets:
            cost_s = self.pair_s(members, pairs)
            done = self.claims and members == self.claims[0].members and self.claims[0].is_narrow
            done = done or len(self.results.pairs.get(members, ())) >= MOST_PAIRS
            # By blocks of one launch alone a set promises more than it holds: 33x, and 4.6x came.
            early = len(members) > 1 and not any(known <= members for known in self.results.pairs)
            if cost_s > self._left_s or done or early:
                continue
            ends = self._ends if members in self._ends else [*self._ends, members]
            left_s = self._left_s - cost_s
            values = np.array([self.reach(end, left_s, pairs * (end == members)) for end in ends])
            signal = self.beliefs.gain(members) + self.beliefs.sigma * self._errors[:, pairs]
            worth = self._expected(signal, ends, values, members) - self._luck
            yield _Option(Action(kind="pair", members=members), worth, cost_s)

    def _switch_options(self) -> Iterator[_Option]:
        """Yield launches in which all arms take turns that can and were not measured."""
        arms = self.beliefs.arms
        names = [x for x in self._alive if arms[x].switches and not self.results.measured(x)]
        price = self.prices.switch_s
        if not names or price is None or self.results.switch_launches >= _SWITCH_LAUNCHES:
            return
        alone_s = {name: price([name], 1) for name in names}  # many workers take long blocks
        for rounds, most_s in itertools.product(_SWITCH_ROUNDS, set(alone_s.values())):
            taken = [name for name in names if alone_s[name] <= most_s]
            cost_s = price(taken, rounds)
            if cost_s > self._left_s:
                continue
            values = np.array([self.reach(end, self._left_s - cost_s) for end in self._ends])
            before = worth = self._expected(np.zeros(SAMPLES), self._ends, values)
            error = np.hypot(0.025, (0.4 + 0.7 / math.sqrt(rounds)) * self.beliefs.sigma)
            for name in taken:
                signal = self.beliefs.gain_of[name] + error * self._errors[:, 1]
                worth += max(0.0, self._expected(signal, self._ends, values) - before)
            yield _Option(Action(kind="switch", arms=tuple(taken), rounds=rounds), worth, cost_s)


@cache
def _pair_errors() -> tuple[Floats, Floats]:
    """Return errors, outliers damped, of the mean of 0, 1, ... pairs of sigma 1; half widths."""
    random = np.random.default_rng(3)
    far = np.where(random.random((SAMPLES, MOST_PAIRS)) < TAIL_SHARE, TAIL_WIDTH, 1.0)
    pairs = random.normal(0, 1, (SAMPLES, MOST_PAIRS)) * far
    grid = np.linspace(-9, 9, 241)
    log, means = np.zeros((SAMPLES, len(grid))), [np.zeros(SAMPLES)]
    for column in pairs.T:
        log += np.log(error_density(column[:, None] - grid, 1.0))
        mass = np.exp(log - log.max(axis=1, keepdims=True))
        means.append(mass @ grid / mass.sum(axis=1))
    errors = np.stack(means, axis=1)
    return errors, np.quantile(np.abs(errors), 0.95, axis=0)
