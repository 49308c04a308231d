"""The measurements that may come next: what the best claim is worth after each, and its seconds.

These are pairs of a set, and one launch in which all arms take turns that can be switched while the
program runs. What does not fit into the time left is no option.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.trials.beliefs import SAMPLES, Beliefs, Members
from torchdoctor.trials.claimed_sets import ClaimedSets
from torchdoctor.trials.lookahead import Lookahead
from torchdoctor.trials.prices import Costs, Prices
from torchdoctor.trials.target_sets import TargetSets
from torchdoctor.trials.thresholds import MOST_PAIRS

_SWITCH_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Action:
    """The next step: "pair", "switch" or "seeds", or "stop" with its reason."""

    kind: str
    members: Members = frozenset()  # of the set that a pair is for
    arms: tuple[str, ...] = ()  # that a switching launch takes turns with, for `rounds` rounds
    rounds: int = 0
    reason: str = ""  # "decided", "nothing to gain", "not tried" or "time"


@dataclass(frozen=True, kw_only=True)
class Option:
    """A measurement that may come next."""

    action: Action
    worth: float  # of the best claim after it, as it is expected
    cost_s: float


class MeasurementOptions:
    """Finds the measurements that fit into the time left, and what they promise."""

    def __init__(
        self,
        beliefs: Beliefs,
        prices: Prices,
        costs: Costs,
        sets: TargetSets,
        claimed: ClaimedSets,
        lookahead: Lookahead,
    ) -> None:
        self._beliefs = beliefs
        self._results = beliefs.results
        self._prices = prices
        self._costs = costs
        self._sets = sets
        self._claimed = claimed
        self._lookahead = lookahead

    def of_pairs(self, pairs: int) -> list[Option]:
        """Return the options to measure so many pairs of one set."""
        options = []
        for members in self._sets.targets:
            cost_s = self._costs.pair_s(members, pairs)
            if cost_s > self._prices.left_s or not self._gets_pairs(members):
                continue
            worth = self._worth_after_pairs(members, pairs, self._prices.left_s - cost_s)
            action = Action(kind="pair", members=members)
            options.append(Option(action=action, worth=worth, cost_s=cost_s))
        return options

    def _gets_pairs(self, members: Members) -> bool:
        if any(claim.members == members for claim in self._claimed.claims):
            return False
        if len(self._results.pairs.get(members, ())) >= MOST_PAIRS:
            return False
        # By blocks of one launch alone a set promises more than it holds: 33x, and 4.6x came. So
        # it waits for a pair of a part of it.
        return len(members) == 1 or any(paired <= members for paired in self._results.pairs)

    def _worth_after_pairs(self, members: Members, pairs: int, left_s: float) -> float:
        ends = self._lookahead.ends
        if members not in ends:
            ends = [*ends, members]
        values = [
            self._lookahead.reach(end, left_s, paid=pairs if end == members else 0) for end in ends
        ]
        signal = self._lookahead.signal_of_pairs(members, pairs)
        return self._lookahead.expected_worth(signal, ends, np.array(values), members)

    def of_switching(self) -> list[Option]:
        """Return the options to launch once with all arms that can switch and were not measured.

        Arms whose turns take long (many workers need long blocks) may stay out of it.
        """
        switch_s = self._prices.switch_s
        names = self._unmeasured_that_switch()
        if not names or switch_s is None or self._results.switch_launches:
            return []
        if not self._lookahead.ends:
            return []  # no set can have a pair, so that nothing would come of it
        options = []
        alone_s = {name: switch_s([name], 1) for name in names}
        for longest_s in set(alone_s.values()):
            taking_turns = [name for name in names if alone_s[name] <= longest_s]
            option = self._switching(taking_turns, switch_s)
            if option is not None:
                options.append(option)
        return options

    def _unmeasured_that_switch(self) -> list[str]:
        switching = [name for name in self._sets.alive if self._beliefs.arms[name].switches]
        return [name for name in switching if not self._results.measured(name)]

    def _switching(
        self, names: Sequence[str], switch_s: Callable[[Sequence[str], int], float]
    ) -> Option | None:
        """Return the option to launch once with these arms; None: it does not fit."""
        cost_s = switch_s(names, _SWITCH_ROUNDS)
        if cost_s > self._prices.left_s:
            return None
        ends = self._lookahead.ends
        left_s = self._prices.left_s - cost_s
        values = np.array([self._lookahead.reach(end, left_s) for end in ends])
        without_signal = self._lookahead.expected_worth(np.zeros(SAMPLES), ends, values)
        gains = []
        for name in names:
            signal = self._lookahead.signal_of_blocks(name, _SWITCH_ROUNDS)
            worth = self._lookahead.expected_worth(signal, ends, values)
            gains.append(max(0.0, worth - without_signal))
        # Beside a claim, each further member has to promise enough by itself.
        gain = max(gains) if self._claimed.claims else sum(gains)
        action = Action(kind="switch", arms=tuple(names), rounds=_SWITCH_ROUNDS)
        return Option(action=action, worth=without_signal + gain, cost_s=cost_s)
