"""Expects the seconds of an arm's next launch by its earlier launches, and its one-time cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from torchdoctor.trials.arms import Arm

# Part of a one-time cost that a warm cache leaves, until measured (compiling on a CPU: 0.06).
CACHED = 0.15
_MANY = 4  # launches of which the slowest is taken for disturbed


def _at_most(seconds: Sequence[float]) -> float:
    """Return what another launch takes at most; of many, the slowest met another load."""
    longest = sorted(seconds)
    return longest[-2] if len(longest) >= _MANY else longest[-1]


class LaunchCosts:
    """The seconds that launches of arms are expected to take.

    Args:
        baseline: the untouched program.
        first_s: seconds of its first launch; None: not known.
    """

    def __init__(self, baseline: Arm, first_s: float | None) -> None:
        self._baseline, self._first_s = baseline, first_s or 0.0

    def expected_s(self, arm: Arm) -> float:
        """Return seconds that the next launch of this arm takes at most."""
        own = [slot.ended_s - slot.began_s for slot in arm.slots]
        if arm is self._baseline:
            return _at_most(own) if own else self._first_s
        if not own:
            return self._plain_s() + arm.facts.setup_s
        if not arm.facts.setup_s:
            return _at_most(own)
        # The first launch compiles; later launches find the result in the cache.
        return max(own[1:], default=self._plain_s() + CACHED * self.once_s(arm))

    def once_s(self, arm: Arm) -> float:
        """Return the seconds of compiling: an arm's first launch beyond the untouched program's."""
        if not arm.facts.setup_s or not arm.slots:
            return arm.facts.setup_s
        first = arm.slots[0]
        return max(0.0, first.ended_s - first.began_s - self._plain_s())

    def once_together_s(self, members: Sequence[Arm]) -> float:
        """Return the one-time seconds of a set: members that change operators compile anew."""
        dearest = max(members, key=self.once_s)
        rest = [arm.facts for arm in members if arm is not dearest]
        longer_s = max(map(self.expected_s, members)) - self.expected_s(self._baseline)
        anew = any(facts.risk > 0 and not facts.phases for facts in rest)
        return max(0.0, longer_s, self.once_s(dearest) if anew else 0.0)

    def _plain_s(self) -> float:
        plain = [slot.ended_s - slot.began_s for slot in self._baseline.slots]
        return median(plain) if plain else self._first_s
