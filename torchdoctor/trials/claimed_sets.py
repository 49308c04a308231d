"""Says which measured sets may be recommended: those that are faster, and earn each member.

A set may be claimed if its interval lies above 1, it gains more than an edit is worth, and for each
member it is likely enough that the set gains by it. `proof` then says how many pairs it lacks: none
makes it a claim, else it stays open.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchdoctor.trials.beliefs import LEAST_GAIN, SAMPLES, Beliefs, Members
from torchdoctor.trials.claims import Floats, LogInterval
from torchdoctor.trials.proof import Proof
from torchdoctor.trials.target_sets import TargetSets
from torchdoctor.trials.thresholds import ADDS, LEAST_OF_RISKY, PROVEN, SURE, WORTH


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


class ClaimedSets:
    """The sets that are claimed, or look as if they could be, given all results."""

    def __init__(self, beliefs: Beliefs, proof: Proof, sets: TargetSets) -> None:
        self._beliefs = beliefs
        self._results = beliefs.results
        self._proof = proof
        self._sets = sets

    @cached_property
    def claims(self) -> list[Claim]:
        """Return the sets that may be recommended, the best first."""
        return [claim for claim in self._faster if not claim.further_pairs]

    @cached_property
    def open_claims(self) -> list[Claim]:
        """Return the sets that look faster, and lack pairs of a proof, the best first."""
        return [claim for claim in self._faster if claim.further_pairs]

    @cached_property
    def worth(self) -> float:
        """Return what the best claim is worth; 0: nothing is claimed, or for less than edits."""
        return max([0.0, *(claim.worth for claim in self.claims)])

    @cached_property
    def sampled_worth(self) -> Floats:
        """Return what the best claim is worth in each sample; 0 everywhere if there is none."""
        if not self.claims:
            return np.zeros(SAMPLES)
        members = self.claims[0].members
        return self._beliefs.gain(members) - WORTH * len(members)

    @cached_property
    def _faster(self) -> list[Claim]:
        sets = [members for members in self._results.pairs if self._may_be_claimed(members)]
        return sorted(map(self._claim, sets), key=lambda claim: -claim.worth)

    def _may_be_claimed(self, members: Members) -> bool:
        if members in self._results.open_training and self._results.seeds_done:
            return False  # nothing tells any more whether it changes training
        if not self._sets.may_run(members) or not self._proof.looks_faster(members):
            return False
        interval = self._proof.interval(members)
        if interval is None or interval.estimate <= WORTH:
            return False
        return self.earns_its_edits(members) and self._proof.earns(members)

    def _claim(self, members: Members) -> Claim:
        interval = self._proof.interval(members)
        assert interval is not None
        return Claim(
            members=members,
            interval=interval,
            pairs=self._proof.pairs(members),
            gain=min(max(self._beliefs.mean_gain(members), interval.low), interval.high),
            further_pairs=self._proof.further_pairs(members),
        )

    def earns_its_edits(self, members: Members) -> bool:
        """Return whether each member gains something that is worth its edit and its risk."""
        return all(self._earns_its_edit(members, name) for name in members)

    def _earns_its_edit(self, members: Members, name: str) -> bool:
        probability = self._beliefs.p_adds(members, name)
        is_likely = probability >= self.needed_probability(members, name)
        if is_likely and self._gains_enough_for_its_risk(name):
            return True
        # Of what another member left it may gain more than of the whole step.
        without = self._proof.compared_with(members, name)
        if without not in self._results.pairs:
            return False
        surely_gained = self._beliefs.quantile(members, SURE, without)
        return surely_gained > self._least_gain(name) + LEAST_GAIN

    def _gains_enough_for_its_risk(self, name: str) -> bool:
        """Return whether an arm by itself gains what its risk asks for; without risk nothing."""
        least = self._least_gain(name)
        if not least:
            return True
        alone = frozenset([name])
        plain = self._beliefs.arms[name].plain
        interval = None if plain else self._beliefs.claim(alone)
        if interval is not None and interval.low >= least:
            return True
        return self._beliefs.quantile(alone, 1 - ADDS, plain) >= least

    def _least_gain(self, name: str) -> float:
        return LEAST_OF_RISKY if self._beliefs.arms[name].risk >= 2 else 0.0

    def needed_probability(
        self, members: Members, name: str, measured_next: Members | None = None
    ) -> float:
        """Return the probability with which a member has to add to a set; infinite: no one will do.

        `measured_next`: a set that counts as measured. A set that holds a member is no proof of
        one that was never measured by itself.
        """
        untouched: Members = frozenset()
        measured = {untouched, measured_next, *self._results.pairs}
        if self._proof.compared_with(members, name) in measured:
            return ADDS
        was_alone = frozenset([name]) in measured or name in self._results.blocks
        if was_alone and self._beliefs.arms[name].plain in measured:
            return PROVEN
        return math.inf
