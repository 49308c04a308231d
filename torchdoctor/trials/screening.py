"""A first look at all candidates: who is worth fresh pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from torchdoctor.trials.arms import Arm
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.ladder import next_value
from torchdoctor.trials.launches import Launcher, Plan
from torchdoctor.trials.schedule import (
    CONFIRM_PAIRS,
    DECISIVE,
    FEWEST_PAIRS,
    WORTH,
    BudgetEnded,
    Screened,
    choose_finalists,
    plan_screening,
    without_dearest,
)
from torchdoctor.trials.switching import PHASE, Switching, screen_within

_DEAR = 2.0  # times the cheapest launch
_MOST_REFINED = 3  # values beyond those that a fix names
_FAR_BEHIND = 1.25  # times as fast: a look does not err by as much
_LITTLE = 1.05  # a speed-up: what cannot gain more waits for the others
_PLAIN = 1.3  # a speed-up seen in blocks that goes before all that was not looked at


class Screen:
    """Who is looked at how: within one launch where that is possible, else by launches.

    Args:
        launcher: runs them, within the budget.
        evidence: what they say.
        arms: the candidates, most promising first.
        switching: starts the program with arms that take turns; None: launches alone.
        ceilings: arms that take turns with the others, and are no candidates.
        tell: of the arms that were measured last, for the progress line.
    """

    def __init__(
        self,
        launcher: Launcher,
        evidence: Evidence,
        arms: list[Arm],
        *,
        switching: Switching | None,
        ceilings: Sequence[Arm],
        tell: Callable[[Sequence[Arm]], None],
    ) -> None:
        self.launcher, self.evidence, self.arms = launcher, evidence, arms
        self.switching, self.ceilings, self.tell = switching, ceilings, tell

    def run(self) -> tuple[list[Arm], list[Arm]]:
        """A look at all of them; the finalists, best first, and who else may win."""
        launcher, baseline = self.launcher, self.launcher.baseline
        if len(self.arms) == 1 and not self.ceilings:
            return self.arms, []
        # How long a launch takes must be known before anything is planned.
        if not baseline.slots and launcher.expected_s(baseline) == 0.0:
            launcher.run(baseline, "screen")
        within = self._by_blocks()
        if len(self.arms) <= 1:
            return self.arms, []
        rest = [arm for arm in self.arms if arm not in within]
        arms = self._by_launches(rest, least=1 if within else 2)
        arms += self._refined(arms, within)
        if not within and not arms:
            # No time for a look: one after another, while there is time.
            return _little_last(self.arms), []
        chosen = choose_finalists(
            [self._screened(arm, "screen") for arm in arms if arm.alive]
            + [self._screened(arm, PHASE) for arm in within if arm.alive]
        )
        by_key = {arm.key: arm for arm in self.arms}
        worth, others = ([by_key[key] for key in keys] for keys in (chosen.worth, chosen.others))
        unseen = _little_last([arm for arm in rest if arm not in arms])
        if not arms:
            return self._merged(worth, unseen), others
        # What was too dear for a look waits for those that were seen to gain.
        cheapest_s = min(map(self.launcher.expected_s, rest))
        dear = [x for x in unseen if self.launcher.expected_s(x) >= _DEAR * cheapest_s]
        return self._merged(worth, dear), [*others, *(arm for arm in unseen if arm not in dear)]

    def _merged(self, worth: list[Arm], unseen: list[Arm]) -> list[Arm]:
        """No time for a look at some: these keep their order, most promising first.

        What one treats, at what cost, went into that order; its ceiling alone would prefer what
        treats everything, a compilation of minutes for one. A plain gain that was seen comes first.
        """
        merged = [arm for arm in worth if self._promise(arm) >= math.log(_PLAIN)]
        worth, unseen = [arm for arm in worth if arm not in merged], list(unseen)
        while worth and unseen:
            first = worth if self._promise(worth[0]) >= self._promise(unseen[0]) else unseen
            merged.append(first.pop(0))
        return [*merged, *worth, *unseen]

    def _promise(self, arm: Arm) -> float:
        """What is expected of an arm: what was seen, or half of what it could gain at most."""
        if found := self.evidence.measured(arm).differences:
            return fmean(found)
        one = arm.candidate
        if one is None or one.ceiling is None:
            # Nobody knows what it could give, but it treats what the diagnosis named.
            return math.log(_PLAIN) if one is not None and one.main else 0.0
        return math.log(one.ceiling) / 2

    def _by_blocks(self) -> list[Arm]:
        """A look at those that can be switched, within one launch; the arms that it decided on."""
        arms = [arm for arm in self.arms if arm.facts.switches and arm.facts.risk < 3]
        if len(self.arms) == 1:
            arms = []  # it gets its pairs of launches at once
        if self.switching is None or not (arms or self.ceilings):
            return []
        found = screen_within(
            self.launcher, self.switching, arms, self.ceilings, self._before(arms)
        )
        seen = [arm for arm in arms if arm in found]
        self.tell(seen)
        return seen

    def _before(self, switched: Sequence[Arm]) -> float:
        """Seconds of one look at those that come first and could gain more than any switched one.

        Where the step waits for data, a look at what computes faster must not take the time for
        the loader's workers, where these cannot be switched in the running program.
        """
        if not switched:
            return 0.0
        most = max(_ceiling(arm) for arm in switched)
        first: list[Arm] = []
        for arm in self.arms:
            if arm in switched or _ceiling(arm) <= most:
                break
            first.append(arm)
        if not first:
            return 0.0
        launcher = self.launcher
        return 2 * launcher.expected_s(launcher.baseline) + sum(map(launcher.expected_s, first))

    def _by_launches(self, candidates: list[Arm], least: int) -> list[Arm]:
        """A look at as many as leave time to confirm; the arms that were looked at.

        What can gain next to nothing waits until all others had their look.
        """
        small = [arm for arm in candidates if _gains_little(arm)]
        large = [arm for arm in candidates if arm not in small]
        if not small or not large:
            return self._looked_at(candidates, least)
        found = self._looked_at(large, 1)
        return found + self._looked_at(small, 1, self._needed_s())

    def _needed_s(self) -> float:
        """Seconds to confirm two that look like more than a little, and that there is time for."""
        launcher, baseline_s = self.launcher, self.launcher.expected_s(self.launcher.baseline)
        left_s, fewest = launcher.budget.left(), launcher.fewest_pairs
        able = [
            arm
            for arm in self.arms
            if arm.alive
            and not _gains_little(arm)
            and self._promise(arm) >= math.log1p(WORTH)
            and launcher.costs.pairs_s(arm, fewest) <= left_s
        ]
        pair_s = baseline_s + max(map(launcher.costs.again_s, able), default=0.0)
        return 2 * FEWEST_PAIRS * pair_s if able else 0.0

    def _looked_at(self, candidates: list[Arm], least: int, kept_s: float = 0.0) -> list[Arm]:
        """Of these, the arms that there was time to look at; `kept_s`: for others."""
        launcher, baseline_s = self.launcher, self.launcher.expected_s(self.launcher.baseline)
        left_s, arms = launcher.budget.left() - kept_s, list(candidates)
        while True:
            times, again = (
                list(map(of, arms)) for of in (launcher.expected_s, launcher.costs.again_s)
            )
            plan = plan_screening(times, baseline_s, left_s, least, launcher.pairs_up, again)
            # One that compiles must not take the place of all that stand behind it.
            if plan.candidates == len(arms) or max(times) < _DEAR * min(times):
                break
            arms = without_dearest(arms, launcher.expected_s)
        arms = arms[: plan.candidates]
        if not arms:
            return []
        round_of = launcher.round_of(arms)
        most = plan.rounds * len(round_of)
        launcher.plan = Plan(phase="screen", unit="launch", most=most, arms=round_of)
        for _ in range(plan.rounds):
            # Time to confirm somebody is worth more than another look at everybody.
            if not self._can_confirm_after(arms, kept_s):
                break
            try:
                self._round(arms)
            except BudgetEnded:  # one was dearer than expected; what it leaves is the others'
                break
            self.tell(arms)
        return [arm for arm in arms if not arm.alive or self.evidence.ranked(arm, "screen")[0]]

    def _round(self, arms: list[Arm]) -> None:
        """A look at each; where pairs are few, none that a plain gain needs to be confirmed.

        Side by side each has a baseline of its own, so the order is free: most promising first.
        """
        launcher = self.launcher
        if not launcher.pairs_up:
            launcher.round(arms, "screen")
            return
        baseline = launcher.baseline
        for number, arm in enumerate(arms):
            seen = [one for one in arms[:number] if one.alive]
            best = max(seen, key=self._promise, default=baseline)
            confirmed = [baseline, best] * DECISIVE
            if best is not baseline and self._promise(best) >= math.log(_PLAIN):
                if not launcher.affords(baseline, arm, *confirmed):
                    return
                if self._like_one_far_behind(arm, best, seen):
                    continue
            if launcher.affords(baseline, arm):  # a dear one costs the others nothing
                launcher.round([arm], "screen")

    def _like_one_far_behind(self, arm: Arm, best: Arm, seen: Sequence[Arm]) -> bool:
        """Whether it does in another way what is far behind: it waits for the others."""
        alike = [one for one in seen if _alike(one, arm)]
        if not alike or best in alike:
            return False
        return max(map(self._promise, alike)) < self._promise(best) - math.log(_FAR_BEHIND)

    def _refined(self, launched: Sequence[Arm], within: list[Arm]) -> list[Arm]:
        """More values of the best fix's setting: beside the best one so far, or as that, in blocks.

        Returns:
            Those that were launched; those that were seen in blocks are added to `within`.
        """
        found: list[Arm] = []
        for number in range(_MOST_REFINED):
            gains = {
                arm.key: self._screened(arm, phase).gain
                for phase, arms in (("screen", [*launched, *found]), (PHASE, within))
                for arm in arms
                if arm.alive and self.evidence.ranked(arm, phase)[0]
            }
            known = [arm for arm in [*launched, *found, *within] if arm.key in gains]
            known.sort(key=lambda arm: gains[arm.key], reverse=True)
            leading = {arm.fixes[0][0]: arm for arm in reversed(known)}  # the best of each fix
            following = [
                (best, arm)
                for best in known
                if best is leading[best.fixes[0][0]] and gains[best.key] >= math.log1p(WORTH)
                if (arm := _next_to(best, known, gains, f"refined-{number}")) is not None
            ]
            if not following or not self._leaves_the_rest_after(following[0]):
                break
            best, arm = following[0]
            if best in within:
                if not self._is_seen_in_blocks(arm):
                    break
                within.append(arm)
            self.arms.append(arm)
            if best not in within:
                found.append(arm)
                self.launcher.round([arm] if self.launcher.pairs_up else [best, arm], "screen")
            self.tell([best, arm])
        return found

    def _is_seen_in_blocks(self, arm: Arm) -> bool:
        """A look at one more within a launch of its own."""
        return self.switching is not None and bool(
            screen_within(self.launcher, self.switching, [arm])
        )

    def _screened(self, arm: Arm, phase: str) -> Screened:
        """What a look at one arm said."""
        found, other = self.evidence.ranked(arm, phase)
        return Screened(
            key=arm.key,
            fix=arm.fixes[0][0],
            differences=found,
            other=other,
            within=phase == PHASE,
        )

    def _leaves_the_rest_after(self, arms: Sequence[Arm]) -> bool:
        """Whether a round leaves time for all pairs of one finalist, and for its patch.

        One more value gains little over its neighbours; a patch that was not measured is less.
        """
        launcher, baseline_s = self.launcher, self.launcher.expected_s(self.launcher.baseline)
        times = [launcher.expected_s(arm) for arm in arms]
        pairs_s = (CONFIRM_PAIRS + FEWEST_PAIRS) * (baseline_s + max(times))
        return 2 * baseline_s + sum(times) + pairs_s <= launcher.budget.left()

    def _can_confirm_after(self, arms: Sequence[Arm], kept_s: float) -> bool:
        """Whether a round of screening leaves time for the fewest pairs of one finalist."""
        launcher, baseline_s = self.launcher, self.launcher.expected_s(self.launcher.baseline)
        alive = [arm for arm in arms if arm.alive]
        if not alive:
            return False
        again_s = [launcher.costs.again_s(arm) for arm in alive]
        confirm_s = launcher.fewest_pairs * (baseline_s + fmean(again_s))
        round_s = sum(map(launcher.expected_s, launcher.round_of(alive)))
        return round_s + confirm_s + kept_s <= launcher.budget.left()


def _next_to(best: Arm, known: Sequence[Arm], gains: Mapping[str, float], key: str) -> Arm | None:
    """The best one with a value that is worth trying next; None: there is none."""
    ladder, (fix, settings) = best.facts.ladder, best.fixes[0]
    if ladder is None or best.candidate is None:
        return None
    alike = [arm for arm in known if arm.fixes[0][0] == fix]
    alike.sort(key=lambda arm: gains[arm.key])
    tried = {int(arm.fixes[0][1][ladder.setting]): gains[arm.key] for arm in alike}
    value = next_value(tried, ladder)
    if value is None:
        return None
    return best.with_settings(key, {**settings, ladder.setting: value})


def _alike(one: Arm, other: Arm) -> bool:
    """Whether they differ by a setting alone, or one applies the other: in the same company."""
    (first, *company), (second, *others) = ([name for name, _ in x.fixes] for x in (one, other))
    related = first == second or first in other.facts.includes or second in one.facts.includes
    return related and company == others


def _gains_little(arm: Arm) -> bool:
    return 1.0 < _ceiling(arm) <= _LITTLE


def _little_last(arms: Sequence[Arm]) -> list[Arm]:
    """What can gain next to nothing after all others, else in this order."""
    return sorted(arms, key=_gains_little)


def _ceiling(arm: Arm) -> float:
    """What it could gain at most, as a speed-up; 1 where nothing is known of that."""
    ceiling = arm.candidate.ceiling if arm.candidate is not None else None
    return 1.0 if ceiling is None else ceiling
