"""What the next measurements cost, in seconds, by what those before them took.

A pair is two launches. The first one with a fix may take longer (it compiles, or copies), and so
does the first of a patch; where only other seeds tell whether training changed, launches with these
come on top.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torchdoctor.bench.engine import CACHED
from torchdoctor.trials.beliefs import Beliefs, Members
from torchdoctor.trials.log import SEED_LAUNCHES
from torchdoctor.trials.proof import Proof

_LAUNCHES_OF_A_PAIR = 2.05  # two, and what lies between them


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Seconds that are known before a decision."""

    budget_s: float  # of the whole search
    left_s: float  # of it
    launch_s: float  # of half a pair of the untouched program
    once_s: Mapping[str, float] = field(default_factory=dict)  # measured one-time costs, by arm
    # Of a launch in which arms take turns for so many rounds; None: this program cannot switch.
    switch_s: Callable[[Sequence[str], int], float] | None = None
    patch_s: float = 0.0  # of the first launch of a patch, beyond the others


class Costs:
    """Adds up what measurements of a set take."""

    def __init__(self, beliefs: Beliefs, prices: Prices, proof: Proof) -> None:
        self._arms = beliefs.arms
        self._results = beliefs.results
        self._prices = prices
        self._proof = proof

    def pair_s(self, members: Members, pairs: int = 1) -> float:
        """Return the seconds of the next pairs of a set."""
        first_time_s = max(map(self._once_s, members), default=0.0)
        every_time_s = CACHED * first_time_s
        seconds = pairs * (_LAUNCHES_OF_A_PAIR * self._prices.launch_s + every_time_s)
        if members not in self._results.pairs:
            seconds += first_time_s - every_time_s
        if self._include_first_patch(members, pairs):
            seconds += self._prices.patch_s
        if self._may_take_seeds(members):
            seconds += self.seeds_s
        return seconds

    def proof_s(self, members: Members) -> float:
        """Return the seconds of the pairs that the proof of a set lacks, at least of one."""
        return self.pair_s(members, max(self._proof.further_pairs(members), 1))

    def fits(self, members: Members) -> bool:
        """Return whether the next pair of a set fits into the time that is left."""
        is_too_dear = members in self._results.too_dear
        return not is_too_dear and self.pair_s(members) <= self._prices.left_s

    @property
    def seeds_s(self) -> float:
        """Return the seconds of launches of the untouched program with other seeds."""
        return SEED_LAUNCHES * self._prices.launch_s

    def _once_s(self, name: str) -> float:
        """Return the one-time cost of an arm, as it was measured or else announced."""
        return self._prices.once_s.get(name, self._arms[name].once_s)

    def _include_first_patch(self, members: Members, pairs: int) -> bool:
        """Return whether the first launch of a set's patch is among its next pairs."""
        if not self._proof.is_patched(members) or members in self._results.patched:
            return False
        # What was never seen to work is no patch yet: its first pair is of the fixes at run time.
        if pairs > 1 or members in self._results.pairs:
            return True
        return len(members) == 1 and not members.isdisjoint(self._results.blocks)

    def _may_take_seeds(self, members: Members) -> bool:
        if self._results.seeds_done:
            return False
        return any(self._arms[name].may_reseed for name in members)
