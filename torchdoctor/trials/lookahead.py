"""Looks ahead: what the best claim will be worth after a measurement, in each sample of beliefs.

In each sample the gains are known, so it is known what further pairs of a set would show. From that
follow, in this order:

1. `_plan`: what a set is worth after 0, 1, 2, ... further pairs: its gain less the price of its
   edits where these would prove it, and nothing where they would not;
2. `reach`: the same for as many pairs as promise most of those that the time left has room for;
3. `expected_worth`: the worth of the best set once a measurement has given its signal, which says
   no more of the sample than what all samples with about that signal have in common.
"""

import math
from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np

from torchdoctor.queries.outcomes import PROOF_PAIRS, STRONG_PAIRS
from torchdoctor.trials.beliefs import SAMPLES, Beliefs, Members
from torchdoctor.trials.claimed_sets import ClaimedSets
from torchdoctor.trials.claims import TAIL_SHARE, TAIL_WIDTH, Floats, error_density
from torchdoctor.trials.prices import Costs
from torchdoctor.trials.proof import STRONG_GAIN
from torchdoctor.trials.target_sets import TargetSets
from torchdoctor.trials.thresholds import MOST_PAIRS, WORTH

_MOST_ENDS = 14  # sets that a plan may end with
_BINS = 16  # of a signal's values, within which samples are averaged
_WIDER = 1.1  # times the width that errors alone give an interval
# Of intervals where sigma is not known.
_LEVEL = 0.96
_LEVEL_OF_ONE_PAIR = 0.98
# Error of a gain in blocks of one launch: whatever sigma is, and parts of sigma.
_SWITCH_ERROR = 0.025
_SWITCH_SIGMA = 0.4
_SWITCH_SIGMA_OF_A_ROUND = 0.7  # the less, the more rounds


class Lookahead:
    """What plans and measurements are worth, given all results."""

    def __init__(
        self, beliefs: Beliefs, costs: Costs, sets: TargetSets, claimed: ClaimedSets
    ) -> None:
        self._beliefs = beliefs
        self._costs = costs
        self._sets = sets
        self._claimed = claimed
        errors, self._half_widths = _errors_of_means()
        self._errors = errors[np.random.default_rng(SAMPLES).permutation(SAMPLES)]
        self._plans: dict[tuple[Members, int], tuple[Floats, Floats]] = {}
        self._adding: dict[Members, Floats] = {}

    # -- what a set can be worth

    def worth(self, members: Members, left_s: float) -> float:
        """Return what a set is expected to be worth if the time left goes to its pairs."""
        return float(self._beliefs.weight @ self.reach(members, left_s))

    def reach(self, members: Members, left_s: float, paid: int = 0) -> Floats:
        """Return for each sample what a set is worth if the time left goes to its pairs.

        It is worth nothing where these would not show it. `paid`: pairs that count as measured,
        beside those that were.
        """
        if (members, paid) not in self._plans:
            self._plans[members, paid] = self._plan(members, paid)
        values, averages = self._plans[members, paid]
        affordable = sum(cost_s <= left_s for cost_s in self._plan_costs_s(members, paid))
        best = int(np.argmax(averages[:affordable]))
        return np.asarray(values[best])

    def _plan_costs_s(self, members: Members, paid: int) -> list[float]:
        """Return the seconds of 0, 1, 2, ... more pairs.

        The first may take longer, and the second, if it is the first of the patch.
        """
        paid_s = self._costs.pair_s(members, paid) if paid else 0.0
        one_s = self._costs.pair_s(members, paid + 1) - paid_s
        two_s = self._costs.pair_s(members, paid + 2) - paid_s
        three_s = self._costs.pair_s(members, paid + 3) - paid_s
        further_s = three_s - two_s
        return [0.0, one_s, *(two_s + further_s * more for more in range(MOST_PAIRS - 1))]

    def _plan(self, members: Members, paid: int) -> tuple[Floats, Floats]:
        """Return what 0, 1, 2, ... more pairs are worth: for each sample, and on average.

        The sum of all log speed-ups, not their mean, is compared with the half width that it has,
        since what blocks within a launch say counts as a part of a pair.
        """
        beliefs = self._beliefs
        gain = beliefs.gain(members)
        logs = beliefs.results.pairs.get(members, ())
        further_pairs = np.arange(MOST_PAIRS + 1) + paid
        pairs = further_pairs + len(logs)
        median_log = float(np.median(logs)) if logs else 0.0
        error = beliefs.sigma[:, None] * self._errors[:, further_pairs.clip(max=MOST_PAIRS)]
        total = further_pairs * (gain[:, None] + error) + len(logs) * median_log

        pairs_of_blocks = np.zeros((SAMPLES, 1))  # as many pairs as the blocks count for
        if blocks := beliefs.blocks(members):
            spread = blocks.spread(beliefs.sigma, gain)
            pairs_of_blocks = (beliefs.sigma / spread)[:, None] ** 2
            total = total + pairs_of_blocks * blocks.gain

        counted = pairs.clip(min=1)
        half_width = self._half_widths_of_means[:, pairs.clip(max=MOST_PAIRS)]
        half_width = half_width * np.sqrt(counted * (counted + pairs_of_blocks))
        is_strong = (pairs >= STRONG_PAIRS) & (total - half_width > STRONG_GAIN * counted)
        is_proven = (pairs >= PROOF_PAIRS) | is_strong
        is_shown = (total > half_width) & is_proven

        worth = (gain - WORTH * len(members))[:, None]
        values = np.where(is_shown, worth, 0.0).T
        averages = values @ beliefs.weight
        if averages[0] <= 0:
            values[0] = 0.0  # what is proven already need not be claimed
        return values, np.maximum(averages, 0.0)

    @cached_property
    def _half_widths_of_means(self) -> Floats:
        """Return half the width of the interval of the mean of 0, 1, ... pairs, by sample.

        A few pairs hardly show what sigma is: so much of the width is that of all sigmas together.
        """
        beliefs = self._beliefs
        of_all_sigmas = np.full(MOST_PAIRS + 1, math.inf)
        for pairs in range(1, MOST_PAIRS + 1):
            errors = np.abs(beliefs.sigma * self._errors[:, pairs])
            order = np.argsort(errors)
            cumulated = np.cumsum(beliefs.weight[order])
            level = _LEVEL_OF_ONE_PAIR if pairs == 1 else _LEVEL
            place = min(int(np.searchsorted(cumulated, level)), SAMPLES - 1)
            of_all_sigmas[pairs] = errors[order][place]
        of_own_sigma = _WIDER * beliefs.sigma[:, None] * self._half_widths[None, :]
        shown_of_sigma = 1.0 - 1.0 / np.arange(MOST_PAIRS + 1).clip(1) ** 2.0
        return np.asarray(shown_of_sigma * of_own_sigma + (1 - shown_of_sigma) * of_all_sigmas)

    # -- what a measurement will say

    def signal_of_pairs(self, members: Members, pairs: int) -> Floats:
        """Return for each sample the mean log speed-up that the next pairs of a set will show."""
        error = self._beliefs.sigma * self._errors[:, pairs]
        return self._beliefs.gain(members) + error

    def signal_of_blocks(self, name: str, rounds: int) -> Floats:
        """Return for each sample the log speed-up that an arm's blocks in one launch will show."""
        part = _SWITCH_SIGMA + _SWITCH_SIGMA_OF_A_ROUND / math.sqrt(rounds)
        error = np.hypot(_SWITCH_ERROR, part * self._beliefs.sigma)
        return np.asarray(self._beliefs.gain_of[name] + error * self._errors[:, 1])

    # -- what the best claim is worth after it

    @cached_property
    def ends(self) -> list[Members]:
        """Return the sets that a plan may end with, the most promising first."""
        return sorted(self._sets.targets, key=self._promise, reverse=True)[:_MOST_ENDS]

    def _promise(self, members: Members) -> float:
        return float(self._beliefs.weight @ self._beliefs.gain(members).clip(min=0.0))

    def expected_worth(
        self,
        signal: Floats,
        ends: Sequence[Members],
        values: Floats,
        measured_next: Members | None = None,
    ) -> float:
        """Return the expected worth of the best end once a signal is known.

        `values`: a row for each end, its `reach`. `measured_next`: the set that the signal is of.
        An end of several members counts where each of them then adds likely enough to be worth
        pairs. Instead of any end, what is claimed already may stay.
        """
        bins = _Bins(signal, self._beliefs.weight)
        means = bins.averages(values)
        for row, end in enumerate(ends):
            if self._has_to_earn_members(end):
                needed = [
                    self._claimed.needed_probability(end, name, measured_next)
                    for name in sorted(end)
                ]
                is_likely = bins.averages(self._adding_members(end)) >= np.array(needed)[:, None]
                means[row] = np.where(is_likely.all(axis=0), means[row], 0.0)
        claimed = bins.averages(self._claimed.sampled_worth[None, :])[0]
        best = np.maximum(means.max(axis=0), np.maximum(claimed, 0.0))
        return float(bins.weights @ best)

    def _has_to_earn_members(self, members: Members) -> bool:
        return len(members) > 1 or any(self._beliefs.arms[name].plain for name in members)

    def _adding_members(self, members: Members) -> Floats:
        """Return whether members add to their set, 1 or 0: a row for each, a column a sample."""
        if members not in self._adding:
            rows = [self._beliefs.adding(members, name) for name in sorted(members)]
            self._adding[members] = np.array(rows, float)
        return self._adding[members]


class _Bins:
    """Samples sorted by a signal into bins of as many; in a bin they cannot be told apart."""

    def __init__(self, signal: Floats, weight: Floats) -> None:
        self._order = np.argsort(signal)
        self._starts = np.linspace(0, SAMPLES, _BINS + 1)[:-1].astype(int)
        self._weight = weight[self._order]
        self.weights = np.add.reduceat(self._weight, self._starts)

    def averages(self, rows: Floats) -> Floats:
        """Return the weighted average of each row of samples in each bin."""
        sums = np.add.reduceat(rows[:, self._order] * self._weight, self._starts, axis=1)
        return np.asarray(sums / np.maximum(self.weights, 1e-12))


@cache
def _errors_of_means() -> tuple[Floats, Floats]:
    """Return errors of the mean of 0, 1, ... pairs, a row for each sample, and their half widths.

    A pair has a sigma of 1, and outliers; the mean is the one that damps these.
    """
    random = np.random.default_rng(3)
    width = np.where(random.random((SAMPLES, MOST_PAIRS)) < TAIL_SHARE, TAIL_WIDTH, 1.0)
    pairs = random.normal(0, 1, (SAMPLES, MOST_PAIRS)) * width
    grid = np.linspace(-9, 9, 241)
    log_likelihood = np.zeros((SAMPLES, len(grid)))
    means = [np.zeros(SAMPLES)]
    for pair in pairs.T:
        log_likelihood += np.log(error_density(pair[:, None] - grid, 1.0))
        mass = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
        means.append(mass @ grid / mass.sum(axis=1))
    errors = np.stack(means, axis=1)
    return errors, np.quantile(np.abs(errors), 0.95, axis=0)
