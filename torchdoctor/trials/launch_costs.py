"""What the next launch of an arm costs, by the launches before; what is paid only once."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from torchdoctor.trials.arms import Arm

# Of a one-time cost, paid again with a warm cache, until measured (compiling on a CPU: 0.06).
_CACHED = 0.15
_MANY = 4  # launches


def _at_most(seconds: Sequence[float]) -> float:
    """Return what one more takes at most; of many, the slowest met somebody else's load."""
    longest = sorted(seconds)
    return longest[-2] if len(longest) >= _MANY else longest[-1]


class LaunchCosts:
    """Seconds of launches.

    Args:
        baseline: the untouched program.
        first_s: of a launch of it, before it was launched here; None: unknown.
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
        # The first launch compiles; those after it find the result in the cache.
        return max(own[1:], default=self._plain_s() + _CACHED * self.once_s(arm))

    def once_s(self, arm: Arm) -> float:
        """Return seconds that its first launch takes beyond the untouched program's: compiling."""
        if not arm.facts.setup_s or not arm.slots:
            return arm.facts.setup_s
        first = arm.slots[0]
        return max(0.0, first.ended_s - first.began_s - self._plain_s())

    def again_s(self, arm: Arm) -> float:
        """Return seconds of a launch after the next one: what is compiled then is compiled."""
        saved_s = 0.0 if arm.slots else (1.0 - _CACHED) * arm.facts.setup_s
        return self.expected_s(arm) - saved_s

    def pairs_s(self, arm: Arm, pairs: int) -> float:
        """Return seconds of the next pairs of the untouched program and one arm."""
        first_s = self.expected_s(arm) - self.again_s(arm)
        return first_s + pairs * (self.expected_s(self._baseline) + self.again_s(arm))

    def once_together_s(self, members: Sequence[Arm]) -> float:
        """One-time seconds of a set: other operators than each member alone has compile anew."""
        dearest = max(members, key=self.once_s)
        rest = [arm.facts for arm in members if arm is not dearest]
        longer_s = max(map(self.expected_s, members)) - self.expected_s(self._baseline)
        anew = any(facts.risk > 0 and not facts.phases for facts in rest)
        return max(0.0, longer_s, self.once_s(dearest) if anew else 0.0)

    def _plain_s(self) -> float:
        plain = [slot.ended_s - slot.began_s for slot in self._baseline.slots]
        return median(plain) if plain else self._first_s
