"""Says which measured sets of fixes are proven, and what the proof of the others lacks. Pure.

What is recommended is the patch that was measured, wherever the source can be edited. A fix is
measured at run time first; pairs of its patch follow, and theirs is the interval that is shown.
Pairs at run time count beside them as long as the two agree.
"""

import math
from collections.abc import Sequence

from torchdoctor.queries.outcomes import PROOF_PAIRS, STRONG_PAIRS, STRONG_SPEEDUP
from torchdoctor.trials.beliefs import Beliefs, Members
from torchdoctor.trials.claims import LogInterval, claim_interval

STRONG_GAIN = math.log(STRONG_SPEEDUP)
PROVEN_ALONE = math.log(1.02)  # where the interval of a further member begins, by itself
_APART = math.log(1.05)  # between intervals that agree: the load changes within minutes


def agree(run_time: Sequence[float], patched: Sequence[float]) -> bool:
    """Return whether the pairs of fixes at run time and those of their patch agree."""
    if not run_time or not patched:
        return True
    fixes = claim_interval(run_time)
    patch = claim_interval(patched)
    gap = max(patch.low - fixes.high, fixes.low - patch.high)
    return gap <= _APART


def pooled(run_time: Sequence[float], patched: Sequence[float]) -> list[float]:
    """Return the pairs that count: those of the patch alone where the two do not agree."""
    return [*run_time, *patched] if agree(run_time, patched) else [*patched]


class Proof:
    """Judges sets by their pairs, as the results of the search hold them."""

    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs
        self._results = beliefs.results
        self._intervals: dict[Members, LogInterval | None] = {}

    def interval(self, members: Members) -> LogInterval | None:
        """Return the interval that is shown of a set, its patch's own; None: it had no pair."""
        if members not in self._intervals:
            self._intervals[members] = self._interval(members)
        return self._intervals[members]

    def _interval(self, members: Members) -> LogInterval | None:
        patched = self._results.patched.get(members, ())
        if not patched:
            return self._beliefs.claim(members)
        return claim_interval(patched, self._beliefs.sigma_log(without=members))

    def interval_of_blocks(self, members: Members) -> LogInterval | None:
        """Return the interval of blocks within one launch alone; None: there are none."""
        blocks = self._beliefs.blocks(members)
        if blocks is None:
            return None
        sigma = float(self._beliefs.weight @ self._beliefs.sigma)
        half = 2.0 * float(blocks.spread(sigma, blocks.gain))
        return LogInterval(estimate=blocks.gain, low=blocks.gain - half, high=blocks.gain + half)

    def pairs(self, members: Members) -> int:
        """Return the pairs that count for a set."""
        return len(self._results.pairs.get(members, ()))

    def is_patched(self, members: Members) -> bool:
        """Return whether a set is proven by its patch: one is made, or may still be."""
        return self._results.makes_patches and members not in self._results.by_hand

    def looks_faster(self, members: Members) -> bool:
        """Return whether the interval of a set lies above 1."""
        interval = self.interval(members)
        return interval is not None and interval.low > 0

    def holds(self, members: Members) -> bool:
        """Return whether a set is proven to be faster."""
        return self.looks_faster(members) and self.further_pairs(members) == 0

    def further_pairs(self, members: Members) -> int:
        """Return how many pairs the proof of a set lacks, if these come out like those before."""
        interval = self.interval(members)
        pairs = self.pairs(members)
        is_strong = interval is not None and interval.low >= STRONG_GAIN
        lacking = (STRONG_PAIRS if is_strong else PROOF_PAIRS) - pairs
        if self.is_patched(members):
            lacking = max(lacking, 1 - len(self._results.patched.get(members, ())))
        return max(lacking, 0)

    def further_patched_pairs(self, members: Members) -> int:
        """Return how many pairs of its own the proof of a patch lacks; 0: none was made, or ran."""
        patched = len(self._results.patched.get(members, ()))
        interval = self.interval(members)
        if not patched or interval is None:
            return 0
        is_strong = interval.low >= STRONG_GAIN
        return max((STRONG_PAIRS if is_strong else PROOF_PAIRS) - patched, 0)

    def earns(self, members: Members) -> bool:
        """Return whether each member beyond the first was shown to gain within the set."""
        return not self.unearned(members)

    def unearned(self, members: Members) -> list[str]:
        """Return the members of which nothing shows that the set gains by them."""
        if len(members) == 1:
            [name] = members
            plain = self._beliefs.arms[name].plain
            return [] if not plain or self._is_above(members, plain) else [name]
        first = max(sorted(members), key=lambda name: self._beliefs.mean_gain(frozenset([name])))
        return [name for name in sorted(members - {first}) if not self._adds(members, name)]

    def compared_with(self, members: Members, name: str) -> Members:
        """Return the set without a member, and with what goes without it."""
        return members - {name} | self._beliefs.arms[name].plain

    def _adds(self, members: Members, name: str) -> bool:
        alone = frozenset([name])
        interval = self.interval(alone)
        times_seen = self.pairs(alone) + (name in self._results.blocks)
        if interval is not None and times_seen >= STRONG_PAIRS and interval.low > PROVEN_ALONE:
            return True
        return self._is_above(members, self.compared_with(members, name))

    def _is_above(self, members: Members, less: Members) -> bool:
        """Return whether a set is faster than a smaller one, both measured in several pairs."""
        if min(self.pairs(members), self.pairs(less)) < STRONG_PAIRS:
            return False
        more = self.interval(members)
        base = self.interval(less)
        if more is None or base is None:
            return False
        return more.estimate - base.estimate > math.hypot(more.half_width, base.half_width)
