"""Decides by one rule what to measure next, when to stop, and what to claim. Pure.

The next measurement is the one after which the best claim still in reach is worth most for each
second. What is clearly faster is proven before anything else is looked for, and once something is
proven, the rest of the budget has to promise a further gain, or it is given back.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np

from torchdoctor.bench.engine import CACHED
from torchdoctor.queries.outcomes import PROOF_PAIRS, STRONG_PAIRS
from torchdoctor.trials.beliefs import LEAST_GAIN, SAMPLES, Beliefs, Members
from torchdoctor.trials.claims import TAIL_SHARE, TAIL_WIDTH, Floats, LogInterval, error_density
from torchdoctor.trials.log import SEED_LAUNCHES
from torchdoctor.trials.proof import STRONG_GAIN, Proof

WORTH = 0.01  # log speed-up that one more edit has to gain
LEAST_OF_RISKY = math.log1p(0.03)  # least gain of a member of lower precision
SURE = 0.025  # probability of less, where a gain is called sure
ADDS = 0.92  # probability that a member adds, if the set without it was measured
PROVEN = 0.95  # the same, if it was measured by itself alone
MAY_ADD = 0.1  # probability that makes an unproven arm worth a pair with the best set
MOST_PAIRS = 10  # pairs that a plan looks ahead
CLEARLY_FASTER = math.log(1.2)  # an interval that begins here is proven before all else
FURTHER_GAIN = math.log1p(0.05)  # what a further measurement has to promise beside a claim
LARGE_PART = 0.2  # of the rest of the budget: a proof that takes less may promise less
LEAST_PROMISE = 0.5 * WORTH  # what any measurement has to promise
_NOISE = 0.2  # log speed-up: standard deviation of a plan's worth from sample to sample
_NO_RATE = 1e-6  # a gain for each second that is rounding
_PAIR = 2.05  # launches that a pair takes
_ENDS = 14  # sets that a plan may end with
_BINS = 16  # of a signal's values, within which samples are averaged
_SWITCH_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Seconds of measurements."""

    budget_s: float  # of the whole search
    left_s: float  # of it
    launch_s: float  # of half a pair of the untouched program
    once_s: Mapping[str, float] = field(default_factory=dict)  # measured one-time costs, by arm
    # Of a launch in which arms take turns for so many rounds; None: this program cannot switch.
    switch_s: Callable[[Sequence[str], int], float] | None = None
    patch_s: float = 0.0  # of the first launch of a patch, beyond the others


@dataclass(frozen=True, kw_only=True)
class Action:
    """The next step: "pair", "switch" or "seeds", or "stop" with its reason."""

    kind: str
    members: Members = frozenset()  # of the set that a pair is for
    arms: tuple[str, ...] = ()  # that a switching launch takes turns with, for `rounds` rounds
    rounds: int = 0
    reason: str = ""  # "decided", "nothing to gain" or "time"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A set that is faster; `gain`: its expected log speed-up under the prior."""

    members: Members
    interval: LogInterval
    pairs: int
    gain: float
    further_pairs: int = 0  # that its proof lacks

    @property
    def worth(self) -> float:
        """Return its gain less the price of its edits."""
        return self.gain - WORTH * len(self.members)


@dataclass(frozen=True)
class _Option:
    """A measurement, what the best claim is worth after it, and its seconds."""

    action: Action
    worth: float
    cost_s: float


class SearchPolicy:
    """Makes a decision by the beliefs in every arm and the prices of the next measurements."""

    def __init__(self, beliefs: Beliefs, prices: Prices) -> None:
        self.beliefs = beliefs
        self.prices = prices
        self.results = beliefs.results
        self._alive = [name for name in beliefs.arms if name not in self.results.failed]
        errors = _pair_errors()[0]
        self._errors = errors[np.random.default_rng(SAMPLES).permutation(SAMPLES)]
        self._plans: dict[tuple[Members, int], tuple[Floats, Floats]] = {}
        self.proof = Proof(beliefs)
        self._left_s = prices.left_s

    # -- claims

    @cached_property
    def claims(self) -> list[Claim]:
        """Return the sets that may be recommended, the best first."""
        return [claim for claim in self._faster if not claim.further_pairs]

    @cached_property
    def open_claims(self) -> list[Claim]:
        """Return the sets that look faster, and lack pairs of a proof, the best first."""
        return [claim for claim in self._faster if claim.further_pairs]

    @cached_property
    def _faster(self) -> list[Claim]:
        sets = (members for members in self.results.pairs if self._may_be_claimed(members))
        return sorted(map(self._claim, sets), key=lambda claim: -claim.worth)

    def _may_be_claimed(self, members: Members) -> bool:
        opened = members in self.results.open_training and self.results.seeds_done
        if opened or not self._may_run(members) or not self.proof.looks_faster(members):
            return False
        interval = self.proof.interval(members)
        is_worth_it = interval is not None and interval.estimate > WORTH
        return is_worth_it and self._is_earned(members) and self.proof.earns(members)

    def _claim(self, members: Members) -> Claim:
        interval = self.proof.interval(members)
        assert interval is not None
        return Claim(
            members=members,
            interval=interval,
            pairs=self.proof.pairs(members),
            gain=min(max(self.beliefs.mean_gain(members), interval.low), interval.high),
            further_pairs=self.proof.further_pairs(members),
        )

    def _is_earned(self, members: Members) -> bool:
        """Return whether each member gains something that is worth its edit and its risk."""
        for name in members:
            alone = frozenset([name])
            arm = self.beliefs.arms[name]
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

    def _needed(self, members: Members, name: str, measured: Members | None = None) -> float:
        """Return the probability with which a member has to add; `measured`: a set that will be.

        A set that holds a member is no proof of one never measured by itself.
        """
        alone, known = frozenset([name]), {frozenset(), measured, *self.results.pairs}
        plain = self.beliefs.arms[name].plain
        proven = plain in known and (alone in known or name in self.results.blocks)
        return ADDS if members - alone | plain in known else PROVEN if proven else math.inf

    # -- costs

    def pair_s(self, members: Members, pairs: int = 1) -> float:
        """Return the seconds of the next pairs of a set."""
        arms = [self.beliefs.arms[name] for name in members]
        once = [self.prices.once_s.get(arm.name, arm.once_s) for arm in arms]
        again_s = CACHED * max(once, default=0.0)
        first_s = again_s if members in self.results.pairs else max(once, default=0.0)
        reseeds = not self.results.seeds_done and any(arm.may_reseed for arm in arms)
        each_s = _PAIR * self.prices.launch_s + again_s
        # What was never seen to work is no patch yet: its first pair is of the fixes at run time.
        blocks = len(members) == 1 and not members.isdisjoint(self.results.blocks)
        is_next = blocks or pairs > 1 or members in self.results.pairs
        is_first = self.proof.is_patched(members) and members not in self.results.patched
        patch_s = self.prices.patch_s * (is_first and is_next)
        return pairs * each_s + max(0.0, first_s - again_s) + patch_s + reseeds * self.seeds_s

    @property
    def seeds_s(self) -> float:
        """Return the seconds of launches of the untouched program with other seeds."""
        return SEED_LAUNCHES * self.prices.launch_s

    # -- the next measurement

    def next(self) -> Action:
        """Return the next action."""
        best = next(iter([*self.claims, *self.open_claims]), None)
        opened = best is not None and best.members in self.results.open_training
        if opened and self.seeds_s <= self._left_s:
            return Action(kind="seeds")
        nothing_known = not self.results.pairs and not self.results.blocks
        if nothing_known and (members := self._owed()) is not None:
            return Action(kind="pair", members=members)  # the cure of the largest measured part
        if (members := self._clearly_faster()) is not None:
            return Action(kind="pair", members=members)
        if action := self._best_measurement():
            return action
        if (members := self._owed()) is not None:
            return Action(kind="pair", members=members)
        if (members := self._last_proof()) is not None:
            return Action(kind="pair", members=members)
        return Action(kind="stop", reason=self._why_stop())

    def _why_stop(self) -> str:
        """Return "time" where more of it would be worth having."""
        short = any(map(self.lacks_time, self.targets))
        return "time" if short else "decided" if self.claims else "nothing to gain"

    def lacks_time(self, members: Members) -> bool:
        """Return whether pairs of a set would be worth having, and do not fit."""
        worth = float(self.beliefs.weight @ self.reach(members, math.inf))
        least = FURTHER_GAIN if self.claims else WORTH
        return self.proof_s(members) > self._left_s and worth > self._claimed + least

    def proof_s(self, members: Members) -> float:
        """Return the seconds of the pairs that the proof of a set lacks."""
        return self.pair_s(members, max(self.proof.further_pairs(members), 1))

    def _clearly_faster(self) -> Members | None:
        """Return the set to be proven before all else: its interval begins far above 1.

        For each second of its proof it gains most of all such sets.
        """
        sets = [*self.results.pairs, *(frozenset([name]) for name in self.results.blocks)]
        gains: dict[Members, float] = {}
        for members in dict.fromkeys(sets):
            gain = self.beliefs.mean_gain(members) - WORTH * len(members)
            if self._is_clear(members) and gain >= self._claimed + self._least_promise(members):
                gains[members] = gain - self._claimed
        return max(gains, key=lambda x: gains[x] / self.proof_s(x), default=None)

    def _is_clear(self, members: Members) -> bool:
        """Return whether a set is all but proven, and its proof fits."""
        if not self._may_run(members) or members in self.results.too_dear:
            return False
        lacking = self.proof.further_pairs(members)
        pairs = self.proof.pairs(members)
        interval = self.proof.interval(members) or self.interval_of_blocks(members)
        if interval is None or interval.low < CLEARLY_FASTER or not 0 < lacking <= MOST_PAIRS:
            return False
        if pairs >= MOST_PAIRS or self.proof_s(members) > self._left_s:
            return False
        if len(members) == 1 or (self.claims and interval.low > self.claims[0].interval.estimate):
            return True  # such a set shows by its next pairs what its members add to the claim
        return self._is_earned(members) and self.proof.earns(members)

    def interval_of_blocks(self, members: Members) -> LogInterval | None:
        """Return the interval of blocks within one launch alone; None: there are none."""
        blocks = self.beliefs.blocks(members)
        if blocks is None:
            return None
        sigma = float(self.beliefs.weight @ self.beliefs.sigma)
        half = 2.0 * float(blocks.spread(sigma, blocks.gain))
        return LogInterval(estimate=blocks.gain, low=blocks.gain - half, high=blocks.gain + half)

    def _best_measurement(self) -> Action | None:
        """Return what adds most for each second; None: nothing promises enough."""
        if self._left_s <= 0:
            return None
        # Several pairs may decide what one cannot.
        return self._best_of([*self._pair_options(1), *self._switch_options()]) or self._best_of(
            list(self._pair_options(PROOF_PAIRS))
        )

    def _best_of(self, options: Sequence[_Option]) -> Action | None:
        """Return what adds most for each second; None: nothing promises enough."""
        if not options:
            return None
        now = self._worth_now(self._left_s)
        if self.claims:
            # Noise must not keep the time from a set that is expected to be far better.
            telling = [x for x in options if x.worth - now >= self._noise]
            if not telling:
                return self._in_reach()
            options = telling
        rates = [(option.worth - now) / option.cost_s for option in options]
        best = options[int(np.argmax(rates))]
        if max(rates) <= _NO_RATE:  # no measurement is worth its time: take the claim in reach
            reached = self._reached(self._left_s)
            nearly = {x: round(x.worth, 4) for x in options}
            best = max(options, key=lambda x: (nearly[x], reached.get(x.action.members, 0.0)))
        least = self._least_promise(best.action.members)
        return best.action if best.worth - self._claimed >= least else None

    @property
    def _noise(self) -> float:
        """Return the error of an average: few samples count once sets were measured."""
        return _NOISE * float(np.linalg.norm(self.beliefs.weight))

    def _in_reach(self) -> Action | None:
        """Return what the set still lacks that is worth most if the time left goes to it alone."""
        reached = self._reached(self._left_s)
        for members in sorted(reached, key=lambda each: -reached[each]):
            if reached[members] - self._claimed < self._least_promise(members):
                return None
            lacking = [x for x in self._lacking(members) if self._fits_in(x)]
            if lacking:
                return Action(kind="pair", members=lacking[0])
        return None

    def _lacking(self, members: Members) -> Iterator[Members]:
        """Yield the sets of which a pair would bring the claim of one nearer."""
        if self.proof.further_pairs(members) and self.proof.pairs(members) < MOST_PAIRS:
            yield members
        for name in self.proof.unearned(members):
            without = self.proof.compared_with(members, name)
            if without and self.proof.pairs(without) >= STRONG_PAIRS:
                continue  # both were measured, and it adds nothing that shows
            for less in (without, frozenset([name])):
                if self._may_run(less) and self.proof.pairs(less) < STRONG_PAIRS:
                    yield less

    def _least_promise(self, members: Members) -> float:
        """Return the gain beyond the claim that pairs of a set have to promise.

        The more is gained already, the less of the program's time a further gain can save.
        """
        if not self.claims:
            return LEAST_PROMISE
        proof_s = self.pair_s(members, PROOF_PAIRS)
        part = min(proof_s / (LARGE_PART * max(self._left_s, proof_s)), 1.0)
        return max(FURTHER_GAIN * (1.0 + self._claimed) * part, LEAST_PROMISE)

    def _owed(self) -> Members | None:
        """Return a cure of a large measured part that was never measured, in no setting.

        A pair beside other fixes may have lowered what is believed of it; it says little of it.
        """
        arms = self.beliefs.arms
        measured = [arms[name] for name in arms if self.results.measured(name)]
        known = {fix for arm in measured for fix in arm.fixes}
        least = self._claimed + (FURTHER_GAIN if self.claims else WORTH)
        owed = [name for name in self._alive if arms[name].owed and not arms[name].fixes & known]
        worth = {name: math.log(arms[name].ceiling or 1.0) for name in owed}
        # Of two cures of one line, that of its own shape before one of calls of any kind.
        owed.sort(key=lambda each: -worth[each] * arms[each].p_helps)
        for name in sorted(owed, key=lambda each: arms[each].rank_of_correction):
            members = frozenset([name])
            if worth[name] > least and self._may_run(members) and self._fits_in(members):
                return members
        return None

    def _last_proof(self) -> Members | None:
        """Return a set that looks faster, or the most promising one: a hint, if no more fits."""
        for claim in self.open_claims:
            further = claim.worth >= self._claimed + self._least_promise(claim.members)
            if further and self._fits_in(claim.members):
                return claim.members
        for claim in self.claims[:1]:
            patched = self.results.patched.get(claim.members, ())
            if len(patched) == 1 and self._fits_in(claim.members):
                return claim.members  # its interval is that of a single pair
        best = next(iter(self._ends), frozenset())
        is_known = bool(self.claims) or self.proof.pairs(best) >= PROOF_PAIRS
        if is_known or not best or not self._fits_in(best) or self._worth_now(math.inf) <= WORTH:
            return None
        return best

    def _fits_in(self, members: Members) -> bool:
        """Return whether the next pair of a set fits into the time that is left."""
        return members not in self.results.too_dear and self.pair_s(members) <= self._left_s

    @property
    def _claimed(self) -> float:
        return max([0.0, *(claim.worth for claim in self.claims)])

    @cached_property
    def _claimed_gain(self) -> Floats:
        if not self.claims:
            return np.zeros(SAMPLES)
        members = self.claims[0].members
        return self.beliefs.gain(members) - WORTH * len(members)

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
                if self._fits(chosen, name) and self.beliefs.p_adds(chosen, name) >= ADDS
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
        """Return the seconds of 0, 1, 2, ... more pairs; the first, and its patch's, cost more."""
        paid_s = self.pair_s(members, paid) if paid else 0.0
        first_s, second_s, third_s = (
            self.pair_s(members, paid + more) - paid_s for more in range(1, 4)
        )
        each_s = third_s - second_s
        return [0.0, first_s, *(second_s + each_s * more for more in range(MOST_PAIRS - 1))]

    def _plan(self, members: Members, paid: int) -> tuple[Floats, Floats]:
        """Return what 0, 1, 2, ... more pairs are worth, for each sample and on average."""
        gain = self.beliefs.gain(members)
        logs = self.results.pairs.get(members, ())
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
        half_width = wide * np.sqrt(known * (known + alike))
        is_strong = (pairs >= STRONG_PAIRS) & (total - half_width > STRONG_GAIN * known)
        is_proven = (pairs >= PROOF_PAIRS) | is_strong
        shown = (total > half_width) & is_proven
        worth = (gain - WORTH * len(members))[:, None]
        values = np.where(shown, worth, 0.0).T
        averages = values @ self.beliefs.weight
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
        weight = self.beliefs.weight
        gain = self.beliefs.gain
        return sorted(self.targets, key=lambda x: -float(weight @ gain(x).clip(min=0.0)))[:_ENDS]

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
                needed = [self._needed(end, name, measured) for name in sorted(end)]
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
            done = any(claim.members == members for claim in self.claims)
            done = done or self.proof.pairs(members) >= MOST_PAIRS
            # By blocks of one launch alone a set promises more than it holds: 33x, and 4.6x came.
            early = len(members) > 1 and not any(known <= members for known in self.results.pairs)
            if cost_s > self._left_s or done or early:
                continue
            ends = self._ends if members in self._ends else [*self._ends, members]
            left_s = self._left_s - cost_s
            more_pairs = [pairs if end == members else 0 for end in ends]
            values = np.array(
                [self.reach(end, left_s, more) for end, more in zip(ends, more_pairs, strict=True)]
            )
            signal = self.beliefs.gain(members) + self.beliefs.sigma * self._errors[:, pairs]
            worth = self._expected(signal, ends, values, members)
            yield _Option(Action(kind="pair", members=members), worth, cost_s)

    def _switch_options(self) -> Iterator[_Option]:
        """Yield launches in which all arms take turns that can and were not measured."""
        arms = self.beliefs.arms
        names = [x for x in self._alive if arms[x].switches and not self.results.measured(x)]
        price = self.prices.switch_s
        if not names or price is None or self.results.switch_launches:
            return
        alone_s = {name: price([name], 1) for name in names}  # many workers take long blocks
        for most_s in set(alone_s.values()):
            taken = [name for name in names if alone_s[name] <= most_s]
            cost_s = price(taken, _SWITCH_ROUNDS)
            if cost_s > self._left_s:
                continue
            values = np.array([self.reach(end, self._left_s - cost_s) for end in self._ends])
            before = self._expected(np.zeros(SAMPLES), self._ends, values)
            error = np.hypot(0.025, (0.4 + 0.7 / math.sqrt(_SWITCH_ROUNDS)) * self.beliefs.sigma)
            signals = [self.beliefs.gain_of[name] + error * self._errors[:, 1] for name in taken]
            more = [max(0.0, self._expected(x, self._ends, values) - before) for x in signals]
            # Beside a claim, each further member has to promise enough by itself.
            worth = before + (max(more) if self.claims else sum(more))
            action = Action(kind="switch", arms=tuple(taken), rounds=_SWITCH_ROUNDS)
            yield _Option(action, worth, cost_s)


@cache
def _pair_errors() -> tuple[Floats, Floats]:
    """Return errors, outliers damped, of the mean of 0, 1, ... pairs of sigma 1; half widths."""
    random = np.random.default_rng(3)
    far = np.where(random.random((SAMPLES, MOST_PAIRS)) < TAIL_SHARE, TAIL_WIDTH, 1.0)
    pairs = random.normal(0, 1, (SAMPLES, MOST_PAIRS)) * far
    grid = np.linspace(-9, 9, 241)
    log = np.zeros((SAMPLES, len(grid)))
    means = [np.zeros(SAMPLES)]
    for column in pairs.T:
        log += np.log(error_density(column[:, None] - grid, 1.0))
        mass = np.exp(log - log.max(axis=1, keepdims=True))
        means.append(mass @ grid / mass.sum(axis=1))
    errors = np.stack(means, axis=1)
    return errors, np.quantile(np.abs(errors), 0.95, axis=0)
