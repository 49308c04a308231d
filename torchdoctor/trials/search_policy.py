"""Decides by one rule what to measure next, when to stop, and what to claim. Pure.

The next measurement is the one after which the best claim still in reach is worth most for each
second. `SearchPolicy.next` asks in this order, and the first answer counts:

1. Does only a launch with other seeds tell whether the best set changes training? Then "seeds".
2. Was nothing measured yet, and is a candidate made for a large measured part? Then its pair.
3. Is a set clearly faster, and lacks a few pairs of its proof? Then it is proven before all else.
4. Which measurement promises most for its time? It also has to promise enough: once something is
   proven, the rest of the budget has to promise a further gain, or it is given back.
5. Is a candidate for a large measured part still untried, or a set nearly proven? Then its pair.
6. Nothing is: "stop".

`target_sets` says which sets these are, `claimed_sets` what may be claimed, `prices` what time they
take, `lookahead` and `measurement_options` what they promise.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from torchdoctor.queries.outcomes import PROOF_PAIRS, STRONG_PAIRS
from torchdoctor.trials.beliefs import Beliefs, Members
from torchdoctor.trials.claimed_sets import Claim, ClaimedSets
from torchdoctor.trials.lookahead import Lookahead
from torchdoctor.trials.measurement_options import Action, MeasurementOptions, Option
from torchdoctor.trials.prices import Costs, Prices
from torchdoctor.trials.proof import Proof
from torchdoctor.trials.target_sets import TargetSets
from torchdoctor.trials.thresholds import (
    CLEARLY_FASTER,
    FURTHER_GAIN,
    LARGE_PART,
    LEAST_PROMISE,
    MOST_PAIRS,
    WORTH,
)

_NOISE = 0.2  # log speed-up: standard deviation of a plan's worth from sample to sample
_NO_RATE = 1e-6  # a gain for each second that is rounding


class SearchPolicy:
    """Makes a decision by the beliefs in every arm and the prices of the next measurements."""

    def __init__(self, beliefs: Beliefs, prices: Prices) -> None:
        self.beliefs = beliefs
        self.prices = prices
        self.results = beliefs.results
        self.proof = Proof(beliefs)
        self._costs = Costs(beliefs, prices, self.proof)
        self._sets = TargetSets(beliefs)
        self._claimed = ClaimedSets(beliefs, self.proof, self._sets)
        self._lookahead = Lookahead(beliefs, self._costs, self._sets, self._claimed)
        self._options = MeasurementOptions(
            beliefs, prices, self._costs, self._sets, self._claimed, self._lookahead
        )

    # -- what others ask of it

    @property
    def claims(self) -> list[Claim]:
        """Return the sets that may be recommended, the best first."""
        return self._claimed.claims

    @property
    def open_claims(self) -> list[Claim]:
        """Return the sets that look faster, and lack pairs of a proof, the best first."""
        return self._claimed.open_claims

    @property
    def targets(self) -> list[Members]:
        """Return the sets that a pair may be spent on."""
        return self._sets.targets

    def pair_s(self, members: Members, pairs: int = 1) -> float:
        """Return the seconds of the next pairs of a set."""
        return self._costs.pair_s(members, pairs)

    def proof_s(self, members: Members) -> float:
        """Return the seconds of the pairs that the proof of a set lacks."""
        return self._costs.proof_s(members)

    @property
    def nothing_measured(self) -> bool:
        """Return whether no fix was compared with the untouched program, neither well nor badly."""
        return not self.results.pairs and not self.results.blocks

    def lacks_time(self, members: Members) -> bool:
        """Return whether pairs of a set would be worth having, and do not fit.

        Where nothing was measured, what is believed of a set is no reason to leave it out.
        """
        if self.nothing_measured and not self._costs.fits(members):
            return True
        least = self._claimed.worth + self._further_gain
        is_worth_having = self._lookahead.worth(members, math.inf) > least
        return is_worth_having and self.proof_s(members) > self.prices.left_s

    @property
    def lacked_s(self) -> float | None:
        """Return the seconds that the cheapest proof lacks; None: none of a fix lacks time.

        What was cut off took longer than its price: it lacks as much as all of its proof.
        """
        lacked_s = [
            self.proof_s(members)
            - (0.0 if members in self.results.too_dear else self.prices.left_s)
            for members in self._sets.alone
            if self.lacks_time(members)
        ]
        return max(min(lacked_s), 0.0) if lacked_s else None

    # -- the next measurement

    def next(self) -> Action:
        """Return the next action."""
        if self._needs_seeds():
            return Action(kind="seeds")
        members = self._first_of_all()
        if members is not None:
            return Action(kind="pair", members=members)
        action = self._most_promising()
        if action is not None:
            return action
        members = self._untried_cure() or self._last_proof()
        if members is not None:
            return Action(kind="pair", members=members)
        return Action(kind="stop", reason=self._why_stop())

    def _needs_seeds(self) -> bool:
        """Return whether only other seeds tell if the best set changes training, and they fit."""
        best = next(iter([*self.claims, *self.open_claims]), None)
        if best is None or best.members not in self.results.open_training:
            return False
        return self._costs.seeds_s <= self.prices.left_s

    def _first_of_all(self) -> Members | None:
        """Return the set that gets a pair without being compared with others."""
        if self.nothing_measured:
            cure = self._untried_cure()
            if cure is not None:
                return cure
        return self._clearly_faster()

    def _why_stop(self) -> str:
        """Return "time" where more of it would be worth having; `Ending.reason` has the others."""
        if self.nothing_measured:
            return "not tried"
        if any(map(self.lacks_time, self.targets)):
            return "time"
        return "decided" if self.claims else "nothing to gain"

    @property
    def _further_gain(self) -> float:
        """Return what more time has to be worth beyond the claim."""
        return FURTHER_GAIN if self.claims else WORTH

    def _least_promise(self, members: Members) -> float:
        """Return the gain beyond the claim that pairs of a set have to promise.

        The more is gained already, the less of the program's time a further gain can save.
        """
        if not self.claims:
            return LEAST_PROMISE
        proof_s = self._costs.pair_s(members, PROOF_PAIRS)
        part = min(proof_s / (LARGE_PART * max(self.prices.left_s, proof_s)), 1.0)
        return max(FURTHER_GAIN * (1.0 + self._claimed.worth) * part, LEAST_PROMISE)

    # -- a set that is clearly faster

    def _clearly_faster(self) -> Members | None:
        """Return the set to be proven before all else: its interval begins far above 1.

        For each second of its proof it gains most of all such sets.
        """
        of_blocks = [frozenset([name]) for name in self.results.blocks]
        further_gains: dict[Members, float] = {}
        for members in dict.fromkeys([*self.results.pairs, *of_blocks]):
            if not self._is_clear(members):
                continue
            gain = self.beliefs.mean_gain(members) - WORTH * len(members)
            if gain >= self._claimed.worth + self._least_promise(members):
                further_gains[members] = gain - self._claimed.worth
        return max(
            further_gains,
            key=lambda members: further_gains[members] / self.proof_s(members),
            default=None,
        )

    def _is_clear(self, members: Members) -> bool:
        """Return whether a set is all but proven, and its proof fits."""
        if not self._sets.may_run(members) or members in self.results.too_dear:
            return False
        interval = self.proof.interval(members) or self.proof.interval_of_blocks(members)
        if interval is None or interval.low < CLEARLY_FASTER:
            return False
        if not 0 < self.proof.further_pairs(members) <= MOST_PAIRS:
            return False
        if self.proof.pairs(members) >= MOST_PAIRS or self.proof_s(members) > self.prices.left_s:
            return False
        if len(members) == 1:
            return True
        if self.claims and interval.low > self.claims[0].interval.estimate:
            return True  # such a set shows by its next pairs what its members add to the claim
        return self._claimed.earns_its_edits(members) and self.proof.earns(members)

    # -- the measurement that promises most for its time

    def _most_promising(self) -> Action | None:
        """Return what adds most for each second; None: nothing promises enough."""
        if self.prices.left_s <= 0:
            return None
        action = self._best_of([*self._options.of_pairs(1), *self._options.of_switching()])
        # Several pairs may decide what one cannot.
        return action or self._best_of(self._options.of_pairs(PROOF_PAIRS))

    def _best_of(self, options: Sequence[Option]) -> Action | None:
        """Return the best of these options; None: none promises enough.

        Beside a claim, only options count that promise more than the noise of the averages, which
        must not keep the time from a set that is expected to be far better.
        """
        if not options:
            return None
        worth_without = self._worth_in_reach()
        if self.claims:
            options = [each for each in options if each.worth - worth_without >= self._noise]
            if not options:
                return self._next_for_best_in_reach()
        best = self._best_rate(options, worth_without)
        promise = best.worth - self._claimed.worth
        return best.action if promise >= self._least_promise(best.action.members) else None

    def _best_rate(self, options: Sequence[Option], worth_without: float) -> Option:
        """Return the option that adds most for each second."""
        rates = [(option.worth - worth_without) / option.cost_s for option in options]
        if max(rates) > _NO_RATE:
            return options[int(np.argmax(rates))]
        # No measurement tells enough to be worth its time: take the claim that is in reach.
        in_reach = self._worths_in_reach()
        return max(
            options,
            key=lambda each: (round(each.worth, 4), in_reach.get(each.action.members, 0.0)),
        )

    @property
    def _noise(self) -> float:
        """Return the error of an average: few samples count once sets were measured."""
        return _NOISE * float(np.linalg.norm(self.beliefs.weight))

    def _worth_in_reach(self) -> float:
        """Return what the best claim is worth that pairs of one set alone can reach in time."""
        return max([self._claimed.worth, *self._worths_in_reach().values()])

    def _worths_in_reach(self) -> dict[Members, float]:
        """Return what each set is expected to be worth if all the time left goes to it."""
        left_s = self.prices.left_s
        return {members: self._lookahead.worth(members, left_s) for members in self.targets}

    def _next_for_best_in_reach(self) -> Action | None:
        """Return a pair that the set lacks which is worth most if the time left goes to it."""
        worths = self._worths_in_reach()
        for members in sorted(worths, key=lambda each: worths[each], reverse=True):
            if worths[members] - self._claimed.worth < self._least_promise(members):
                return None
            lacking = next(filter(self._costs.fits, self._lacking(members)), None)
            if lacking is not None:
                return Action(kind="pair", members=lacking)
        return None

    def _lacking(self, members: Members) -> Iterator[Members]:
        """Yield the sets of which a pair would bring the claim of one nearer."""
        if self.proof.further_pairs(members) and self.proof.pairs(members) < MOST_PAIRS:
            yield members
        for name in self.proof.unearned(members):
            without = self.proof.compared_with(members, name)
            if without and self.proof.pairs(without) >= STRONG_PAIRS:
                continue  # both were measured, and it adds nothing that shows
            for smaller in (without, frozenset([name])):
                if self._sets.may_run(smaller) and self.proof.pairs(smaller) < STRONG_PAIRS:
                    yield smaller

    # -- what is measured before the search stops

    def _untried_cure(self) -> Members | None:
        """Return a cure of a large measured part that was never measured, in no setting.

        A pair beside other fixes may have lowered what is believed of it; it says little of it.
        """
        arms = self.beliefs.arms
        least = self._claimed.worth + self._further_gain
        tried_fixes = {
            fix for name in arms if self.results.measured(name) for fix in arms[name].fixes
        }
        cures = [
            name
            for name in self._sets.alive
            if arms[name].owed and not arms[name].fixes & tried_fixes
        ]
        bounds = {name: math.log(arms[name].ceiling or 1.0) for name in cures}
        # Of two cures of one line, that of its own shape before one of calls of any kind.
        cures.sort(key=lambda name: -bounds[name] * arms[name].p_helps)
        for name in sorted(cures, key=lambda name: arms[name].rank_of_correction):
            members = frozenset([name])
            may_run = self._sets.may_run(members) and self._costs.fits(members)
            if bounds[name] > least and may_run:
                return members
        return None

    def _last_proof(self) -> Members | None:
        """Return a set that looks faster, or the most promising one: a hint, if no more fits."""
        for claim in self.open_claims:
            least = self._claimed.worth + self._least_promise(claim.members)
            if claim.worth >= least and self._costs.fits(claim.members):
                return claim.members
        if not self.claims:
            return self._hint()
        best = self.claims[0].members
        # Who applies the patch is told what its own pairs prove.
        lacks_proof = self.proof.further_patched_pairs(best) > 0
        return best if lacks_proof and self._costs.fits(best) else None

    def _hint(self) -> Members | None:
        """Return the most promising set where nothing is claimed, if it lacks pairs of a proof."""
        best = next(iter(self._lookahead.ends), None)
        if best is None or self.proof.pairs(best) >= PROOF_PAIRS or not self._costs.fits(best):
            return None
        reachable = [self._lookahead.worth(members, math.inf) for members in self.targets]
        return best if max(reachable) > WORTH else None
