"""Chooses the sets of fixes that a pair may be spent on, by what is believed of each fix.

These are each arm by itself; the best set, and that set with one member less or more; and every set
that was measured, as long as each of its members may still add to it.
"""

from collections.abc import Iterator
from functools import cached_property

from torchdoctor.trials.beliefs import Beliefs, Members
from torchdoctor.trials.thresholds import ADDS, MAY_ADD, WORTH

_LEAST_STEP = 1.5 * WORTH  # what a further member of the best set is expected to gain


class TargetSets:
    """The sets that may be measured, given all results."""

    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs
        self._results = beliefs.results
        self.alive = [name for name in beliefs.arms if name not in self._results.failed]

    def may_run(self, members: Members) -> bool:
        """Return whether no member failed, and no set of some of them."""
        if not members or not members <= set(self.alive):
            return False
        return not any(failed <= members for failed in self._results.failed_sets)

    @property
    def alone(self) -> list[Members]:
        """Return each arm that did not fail, as a set of its own."""
        return [frozenset([name]) for name in self.alive]

    @cached_property
    def targets(self) -> list[Members]:
        """Return the sets that a pair may be spent on."""
        too_dear = self._results.too_dear
        return [
            members
            for members in dict.fromkeys(self._proposed())
            if self.may_run(members) and members not in too_dear
        ]

    def _proposed(self) -> Iterator[Members]:
        """Yield sets that are worth a thought, some of them twice."""
        yield from self.alone
        best = self.best_set
        if len(best) > 1:
            yield best
            yield from (best - {name} for name in sorted(best))
        if best:
            yield from (best | {name} for name in self.alive if self._may_join(best, name))
        for members in self._results.pairs:
            if members <= set(self.alive) and self._may_all_add(members):
                yield members

    def _may_join(self, best: Members, name: str) -> bool:
        if name in self._to_run_alone_first or self._is_excluded(best, name):
            return False
        return self._beliefs.p_adds(best, name) >= MAY_ADD

    def _may_all_add(self, members: Members) -> bool:
        return all(self._beliefs.p_adds(members, name) > MAY_ADD for name in members)

    @cached_property
    def best_set(self) -> Members:
        """Return the set of all arms that are believed to add, chosen by how much each adds."""
        chosen: Members = frozenset()
        usable = [name for name in self.alive if name not in self._to_run_alone_first]
        while True:
            gains = {
                name: self._beliefs.mean_gain(chosen | {name})
                for name in usable
                if not self._is_excluded(chosen, name)
                and self._beliefs.p_adds(chosen, name) >= ADDS
            }
            best = max(gains, key=lambda name: gains[name], default=None)
            gained = self._beliefs.mean_gain(chosen) if chosen else 0.0
            if best is None or gains[best] - gained < _LEAST_STEP:
                return chosen
            chosen = chosen | {best}

    def _is_excluded(self, members: Members, name: str) -> bool:
        """Return whether an arm shares a fix with a member, as every member does with itself."""
        return any(self._beliefs.exclude(name, member) for member in members)

    @cached_property
    def _to_run_alone_first(self) -> set[str]:
        """Return the members of failed sets that never ran alone: one of them may have failed."""
        suspects = {name for members in self._results.failed_sets for name in members}
        return {name for name in suspects if frozenset([name]) not in self._results.pairs}
