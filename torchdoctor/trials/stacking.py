"""Which fixes to apply together: a set grows while it gains, and shrinks where it loses nothing.

A sum of gains is a guess: two fixes may remove the same cost, or need each other. So the set is
measured as a whole, what is added is compared with the set without it, and so is each member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from torchdoctor.trials import compare
from torchdoctor.trials.arms import Arm, Fixes, FixFacts, label
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.launches import Launcher, Plan
from torchdoctor.trials.members import adding, one_of_each
from torchdoctor.trials.outcome import Judgement, training_is_the_same
from torchdoctor.trials.patch_trial import reserve_s
from torchdoctor.trials.samples import Preparation
from torchdoctor.trials.schedule import (
    FEWEST_PAIRS,
    HOPELESS,
    MOST_FINALISTS,
    WORTH,
    hopeless,
    plan_confirmation,
    without_dearest,
)
from torchdoctor.words.figures import counted

STACK, ADD, DROP = "stack", "add", "drop"  # phases; only pairs of the first have the baseline
_LITTLE, _MOST = 0.05, 0.75  # of what all that looked like gains promise


def _shown(differences: Sequence[float]) -> str:
    found = compare.interval(differences)
    bounds = f"{found.estimate:.2f}x ({found.low:.2f}-{found.high:.2f})" if found else "unknown"
    return f"{bounds}, {counted(len(differences), 'pair')}"


class Stacking:
    """Sets of fixes, measured within the budget.

    Args:
        launcher: runs the pairs.
        evidence: what they say.
        candidates: all of them, most promising first.
        judge: verdicts by what is known now, over candidates and `sets`.
        settle: launches other seeds where only they tell whether arms changed training.
        reserves: whether some time is kept for the patch.

    Attributes:
        sets: what was put together, in order.
        short_of_time: a set that should have been measured was not.
        weighed: fixes that a set was measured with and without.
    """

    def __init__(
        self,
        launcher: Launcher,
        evidence: Evidence,
        candidates: Sequence[Arm],
        *,
        judge: Callable[[], Judgement],
        settle: Callable[[list[Arm]], object],
        reserves: bool,
    ) -> None:
        self.launcher, self.evidence, self.candidates = launcher, evidence, candidates
        self._judge, self._settle, self._reserves = judge, settle, reserves
        self.sets: list[Arm] = []
        self.doubts: list[str] = []
        self.short_of_time = False
        self.weighed: set[str] = set()

    def run(self) -> None:
        """All confirmed fixes at once; then what may still add to the best, and what need not be.

        Raises:
            BudgetEnded: launches became slower than planned; what was measured is kept.
        """
        self._all_confirmed()
        best = self._best()
        if best is None or self.short_of_time:
            return
        found = self._lessened(self._grown(best))
        if found is not best:
            self._replace(best, found)

    def measured(self) -> list[Arm]:
        """The sets that a report has to show: beside the untouched program, or failed."""
        return [arm for arm in self.sets if not arm.alive or self.evidence.paired(arm, STACK)]

    def unweighed(self) -> list[str]:
        """A sentence where members of the recommended set may add nothing to it."""
        best = self._best()
        if best is None or best not in self.sets:
            return []
        alone = [one for one in self._judge().faster() if one.phase == "confirm"]
        known = {fix for one in alone for fix, _ in one.arm.fixes} | self.weighed
        names = [fix for fix, _ in best.fixes[1:] if fix not in known]
        if not names:
            return []
        return [
            f"Only the whole of {label(best.fixes)} was measured on fresh pairs: there was no time "
            f"to find out whether it needs {' and '.join(names)} (--budget)."
        ]

    def _best(self) -> Arm | None:
        found = self._judge().recommendable()
        return found[0].arm if found else None

    def promised(self, finalists: Sequence[Arm]) -> None:
        """What looked like gains, all at once, where there is no time to confirm each of them.

        The set is judged by fresh pairs of its own, as any other; what it does not need is left out
        afterwards, in the time that this saved.
        """
        launcher, baseline = self.launcher, self.launcher.baseline
        seen = [one for one in map(self.evidence.measured, finalists) if one.differences]
        seen.sort(key=lambda one: one.gain, reverse=True)
        whole = sum(max(one.gain, 0.0) for one in seen)
        least = max(math.log1p(WORTH), _LITTLE * whole)  # a set of its own may compile anew
        members = one_of_each(adding([one.arm for one in seen if one.gain >= least]))
        plain_s, left_s = launcher.expected_s(baseline), launcher.budget.left()
        kept_s = reserve_s(plain_s, left_s) if self._reserves else 0.0
        members = self._affordable(members, kept_s)
        if len(members) < 2:
            return
        pair_s = plain_s + max(map(launcher.expected_s, members))
        round_s = sum(map(launcher.expected_s, launcher.round_of(members)))
        if FEWEST_PAIRS * (round_s + pair_s) + kept_s <= left_s:
            return
        # Few pairs may not decide: where one gives most of it, they are its own.
        if FEWEST_PAIRS * pair_s + kept_s > left_s and seen[0].gain > _MOST * whole:
            return
        while len(members) > 1 and not self._promises(self._together(members), kept_s):
            # What may have changed training goes first, then what gained least.
            members.remove(max(reversed(members), key=lambda arm: arm.facts.risk))

    def _affordable(self, members: list[Arm], kept_s: float) -> list[Arm]:
        """Those whose set there is time for; none where that would lack the one that gains most.

        A set may compile anew, whatever its members found in the cache.
        """
        most = members[:1]
        while len(members) > 1 and not self._pairs_of_set(self._together(members), kept_s):
            members = without_dearest(members, self.launcher.costs.once_s)
        return members if members[:1] == most else []

    def _pairs_of_set(self, together: Arm, kept_s: float = 0.0) -> int:
        """Pairs that there is time for beside the untouched program; 0: not the fewest."""
        launcher = self.launcher
        plain_s, each_s = launcher.expected_s(launcher.baseline), launcher.expected_s(together)
        left_s, again_s = launcher.budget.left() - kept_s, [launcher.costs.again_s(together)]
        found = plan_confirmation([each_s], plain_s, left_s, again_s=again_s).pairs
        return found if found >= launcher.fewest_pairs else 0

    def _promises(self, together: Arm, kept_s: float) -> bool:
        """Pairs of one set, the rest of them once two say that it trains the same."""
        launcher = self.launcher
        pairs = self._pairs_of_set(together, kept_s)
        if not pairs:
            return True  # nothing was measured, and nothing smaller would be
        both = [launcher.baseline, together]
        launcher.plan = Plan(phase=STACK, unit="pair", most=pairs, arms=both)
        for done in range(0, pairs, 2):
            launcher.abba(together, STACK, min(2, pairs - done))
            self._settle([together])
            one = self.evidence.measured(together)
            same = training_is_the_same(one, self._judge().allow_training_changes)
            if not (together.alive and same) or hopeless(one.differences, pairs):
                return False
        return True

    def _all_confirmed(self) -> None:
        """All confirmed fixes together against the untouched program; fewer if that fails."""
        members = adding([one.arm for one in self._judge().recommendable()])
        if len(members) < 2 or self._measured(self._together(members)):
            return
        together = members[:1]
        for arm in members[1:] if len(members) > 2 else []:
            grown = [*together, arm]
            if len(grown) < len(members) and self._measured(self._together(grown)):
                together = grown

    def _grown(self, best: Arm) -> Arm:
        """With each candidate that looked like a gain, as long as the set is faster with it."""
        tested = 0
        for arm in self._promising(best):
            grown = self._together([best, arm])
            found = self._pairs(grown, best, ADD)
            if found is None:
                return best
            if len(found) < 2:  # it failed, which says nothing of the next one
                continue
            self._settle([grown])
            one = self.evidence.measured(grown)
            tested += 1  # each one more is one more chance to gain by accident
            adjusted = min(1.0, tested * compare.p_value(found))
            faster = compare.verdict(found, adjusted_p=adjusted) == "faster"
            gains = faster and fmean(found) >= math.log1p(WORTH)
            same = training_is_the_same(one, self._judge().allow_training_changes)
            arm.remarks.append(f"on top of {label(best.fixes)}: {_shown(found)}")
            if gains and grown.alive and same:
                best = grown
                self.weighed |= {fix for fix, _ in arm.fixes}
        return best

    def _promising(self, best: Arm) -> Iterator[Arm]:
        """Candidates beside the set whose figures lean to a gain, most of it first."""
        judged = self._judge()
        leaning = [
            one
            for one in judged.measured
            if one.arm in self.candidates
            and one.arm.alive
            and math.log1p(WORTH) <= one.gain
            and (one.phase != "confirm" or judged.verdicts[one.arm.key] == "unclear")
            and not one.numerics.harmful
            and (one.arm.facts.risk < 3 or judged.allow_training_changes)
        ]
        leaning.sort(key=lambda one: one.gain, reverse=True)
        used = {fix for fix, _ in best.fixes} | best.facts.includes
        unseen = [arm for arm in self.candidates if self._is_open(arm, judged)]
        yielded = 0
        for arm in [*(one.arm for one in leaning), *unseen]:
            names = {fix for fix, _ in arm.fixes}
            if not names & used and yielded < MOST_FINALISTS:
                used |= names  # of one fix, the setting that looked best
                yielded += 1
                yield arm

    def _is_open(self, arm: Arm, judged: Judgement) -> bool:
        """Whether next to nothing is known of it: it was not looked at, or once and unluckily."""
        one = judged.of(arm)
        lucky = one.gain >= math.log1p(WORTH)
        once = len(one.differences) < 2 and one.gain > -math.log1p(HOPELESS)
        unknown = not one.differences or (once and not lucky)
        allowed = arm.facts.risk < 3 or judged.allow_training_changes
        return arm.alive and unknown and allowed and not one.numerics.harmful

    def _lessened(self, best: Arm) -> Arm:
        """Without each member that the set is as fast without, the least of them first."""
        for fix, _ in reversed(best.fixes[1:]):
            rest = self._without(best, fix)
            found = self._pairs(rest, best, DROP)
            if found is None:
                return best
            self.weighed.add(fix)
            if len(found) > 1 and rest.alive and fmean(found) > -math.log1p(WORTH):
                best.remarks.append(f"as fast without {fix}: {_shown(found)} of it")
                best = rest
        return best

    def _pairs(self, arm: Arm, against: Arm, phase: str) -> list[float] | None:
        """Differences of an arm and another one that is no baseline; fewer than two if it fails.

        None where no time is left, or the other one cannot be launched any more. What the new set
        needs to be measured against the untouched program stays free.
        """
        launcher = self.launcher
        plain_s, each_s = launcher.expected_s(launcher.baseline), launcher.expected_s(arm)
        left_s = launcher.budget.left()
        kept_s = FEWEST_PAIRS * (plain_s + launcher.costs.again_s(arm))
        kept_s += reserve_s(plain_s, left_s) if self._reserves else 0.0
        against_s, again_s = launcher.expected_s(against), [launcher.costs.again_s(arm)]
        pairs = plan_confirmation([each_s], against_s, left_s - kept_s, again_s=again_s).pairs
        if pairs < FEWEST_PAIRS:
            return None
        launcher.plan = Plan(phase=phase, unit="pair", most=pairs, arms=[against, arm])
        for done in range(0, pairs, 2):
            launcher.abba(arm, phase, min(2, pairs - done), against=against)
            found = self.evidence.paired(arm, phase)
            if not arm.alive or hopeless(found, pairs):
                break
        return self.evidence.paired(arm, phase) if against.alive else None

    def _replace(self, best: Arm, found: Arm) -> None:
        """Measure a set that others led to against the untouched program; it takes their place."""
        measured = self.evidence.measured(found)
        if measured.phase not in ("confirm", STACK):
            self._measured(found)
        if any(one.arm is found for one in self._judge().recommendable()):
            for arm in [best, *self.sets]:
                arm.superseded = arm.superseded or arm is not found

    def _together(self, members: Sequence[Arm]) -> Arm:
        together: dict[str, dict[str, Any]] = {}
        for member in members:
            for fix, settings in member.fixes:
                together.setdefault(fix, settings)  # shared: as the better member has it
        riskiest = max((arm.facts for arm in members), key=lambda facts: facts.risk)
        return self._set(
            list(together.items()),
            replace(
                riskiest,
                setup_s=self.launcher.costs.once_together_s(members),
                includes=frozenset().union(*(arm.facts.includes for arm in members)),
                how=Preparation.together(member.facts.how for member in members),
                doubted=any(member.facts.doubted for member in members),
            ),
        )

    def _without(self, whole: Arm, left_out: str) -> Arm:
        """The set without one fix: the very candidate where only that is left."""
        fixes = [(fix, settings) for fix, settings in whole.fixes if fix != left_out]
        return self._set(fixes, whole.facts)

    def _set(self, fixes: Fixes, facts: FixFacts) -> Arm:
        for arm in (*self.candidates, *self.sets):
            if arm.alive and dict(arm.fixes) == dict(fixes):
                if arm in self.sets and not arm.slots:
                    arm.facts = facts  # its price, by what its members cost by now
                return arm
        self.sets.append(Arm(key=f"stack-{len(self.sets)}", fixes=fixes, facts=facts))
        return self.sets[-1]

    def _measured(self, arm: Arm) -> bool:
        """Whether this set is better against the untouched program than all measured before."""
        launcher, pairs = self.launcher, self._pairs_of_set(arm)
        if pairs < FEWEST_PAIRS:
            if not self.short_of_time:
                self.doubts.append(
                    f"The budget left no time to measure {label(arm.fixes)} together; "
                    "their gains may not add up."
                )
            self.short_of_time = True
            return False
        both = [launcher.baseline, arm]
        launcher.plan = Plan(phase=STACK, unit="pair", most=pairs, arms=both)
        launcher.abba(arm, STACK, pairs)
        self._settle([arm])
        return self._best() is arm
