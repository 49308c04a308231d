"""Fresh pairs for those that screening left: the only figures that count."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from statistics import fmean

from torchdoctor.trials.arms import Arm
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.launches import Launcher, Plan
from torchdoctor.trials.patch_trial import reserve_s
from torchdoctor.trials.schedule import (
    CONFIRM_PAIRS,
    FEWEST_PAIRS,
    SEED_LAUNCHES,
    WORTH,
    BudgetEnded,
    hopeless,
    no_gain,
    plan_confirmation,
    without_dearest,
)

_A_A_SHARE = 0.12  # of the whole budget


class Confirmation:
    """Who is measured afresh, in how many pairs, and when that is enough.

    Args:
        launcher: runs the pairs, within the budget.
        evidence: what they say.
        faster: who is faster by what is known now, and trains the same as far as that is known.
        same: whether an arm trains the same; launches other seeds where only they tell.
        tell: of the arms that were measured last, for the progress line.
        reserves: whether some time is kept for the patch.
    """

    def __init__(
        self,
        launcher: Launcher,
        evidence: Evidence,
        *,
        faster: Callable[[], Sequence[Arm]],
        same: Callable[[Arm], bool],
        tell: Callable[[Sequence[Arm]], None],
        reserves: bool,
    ) -> None:
        self.launcher, self.evidence = launcher, evidence
        self.faster, self.same, self.tell, self.reserves = faster, same, tell, reserves
        self._looked_at: list[Arm] = []  # finalists that were measured afresh

    def finalists(self, finalists: list[Arm]) -> None:
        """Fresh pairs, best first, for as many as the budget allows; the next if nobody wins.

        One whose pair takes too long by now (it compiles) leaves the time to those after it.
        """
        launcher, baseline = self.launcher, self.launcher.baseline
        while finalists := [arm for arm in finalists if launcher.affords(baseline, arm)]:
            baseline_s, left_s = launcher.expected_s(baseline), launcher.budget.left()
            kept_s = reserve_s(baseline_s, left_s) if self.reserves else 0.0  # for the patch
            kept_s += self._seeds_s(finalists[0])
            expected_s = [launcher.expected_s(arm) for arm in finalists]
            again_s = [launcher.costs.again_s(arm) for arm in finalists]
            left_s -= kept_s
            plan = plan_confirmation(expected_s, baseline_s, left_s, launcher.pairs_up, again_s)
            chosen, finalists = finalists[: plan.finalists], finalists[plan.finalists :]
            # Where one is dearer than expected, what it leaves is the others'.
            with contextlib.suppress(BudgetEnded):
                self._measure(chosen, plan.pairs, kept_s, others_wait=bool(finalists))
            self._looked_at += chosen
            self.tell(chosen)
            if self.faster():
                return
            if not finalists:
                self._decide_leader(chosen, kept_s)

    def _measure(
        self, chosen: Sequence[Arm], pairs: int, kept_s: float, *, others_wait: bool
    ) -> None:
        """One finalist's pairs, or rounds of several.

        Raises:
            BudgetEnded: the next launch does not fit.
        """
        if len(chosen) == 1:
            self._plan_pairs(chosen[0], max(1, pairs))
            self._pair_up(chosen[0], max(1, pairs), others_wait=others_wait)
            self._go_on_with(chosen[0], kept_s, others_wait=others_wait)
            return
        self._rounds(chosen, pairs, kept_s)
        for arm in chosen:
            if self.evidence.measured(arm).beyond_bound:
                self._go_on_with(arm, kept_s, others_wait=others_wait)

    def _rounds(self, chosen: Sequence[Arm], most: int, kept_s: float) -> None:
        """Several finalists at once; no more rounds than leave time for all of them together."""
        launcher, baseline = self.launcher, self.launcher.baseline
        arms = launcher.round_of(chosen)
        launcher.plan = Plan(phase="confirm", unit="launch", most=most * len(arms), arms=arms)
        for done in range(most):
            round_s = sum(map(launcher.expected_s, arms))
            dearest_s = max(map(launcher.expected_s, chosen))
            set_s = FEWEST_PAIRS * (launcher.expected_s(baseline) + dearest_s)
            left_s = launcher.budget.left()
            fits_now = set_s + kept_s <= left_s < round_s + set_s + kept_s
            if done >= FEWEST_PAIRS and fits_now and len(self.faster()) > 1:
                break
            launcher.round(chosen, "confirm")

    def _decide_leader(self, chosen: Sequence[Arm], kept_s: float) -> None:
        """Nobody has won, nobody else waits: on with the best one, as long as it may win."""
        launcher, baseline = self.launcher, self.launcher.baseline
        alive = [arm for arm in chosen if arm.alive]
        leader = max(alive, key=lambda arm: self.evidence.measured(arm).gain, default=None)
        while leader is not None and leader.alive and not self.faster():
            seen = self.evidence.paired(leader, "confirm")
            pair_s = launcher.expected_s(baseline) + launcher.expected_s(leader)
            enough = len(seen) < 2 or len(seen) >= 2 * CONFIRM_PAIRS
            if enough or fmean(seen) < math.log1p(WORTH) or not self.same(leader):
                return
            if launcher.budget.left() - kept_s < 2 * pair_s:
                return
            self._plan_pairs(leader, 2)
            launcher.abba(leader, "confirm", 2)

    def _seeds_s(self, arm: Arm) -> float:
        """Seconds of launches with other seeds, where only they will tell whether training changed:
        random numbers are drawn elsewhere (loader workers)."""
        if len(self.launcher.seeds) >= SEED_LAUNCHES or arm.facts.risk >= 3:
            return 0.0
        elsewhere = arm.facts.how.elsewhere and arm.facts.how.draws_random is not False
        likely = elsewhere if not arm.timings else self.evidence.numerics(arm).needs_seeds
        return SEED_LAUNCHES * self.launcher.expected_s(self.launcher.baseline) if likely else 0.0

    def others(self, others: list[Arm]) -> None:
        """Nobody has won, and time is left: those that screening could not tell from a gain.

        Two pairs each, for as many as leave time to go on with one; then on with the best, and
        first with those that two pairs call faster: of many, some do by chance.
        """
        launcher = self.launcher
        arms = [arm for arm in others if self._may_win(arm)]
        while arms and launcher.budget.left() < launcher.costs.pairs_s(arms[0], 4) + sum(
            launcher.costs.pairs_s(arm, 2) for arm in arms[1:]
        ):
            arms = without_dearest(arms, launcher.expected_s)
        if not arms or self.faster():
            return
        self._plan_pairs(arms[0], 2 * len(arms) + CONFIRM_PAIRS - 2)
        for arm in arms:
            launcher.abba(arm, "confirm", 2)
        early = self.faster()
        ranked = sorted(arms, key=lambda arm: -self.evidence.measured(arm).gain)
        for arm in sorted(ranked, key=lambda arm: arm not in early):
            seen = self.evidence.paired(arm, "confirm")
            known = any(len(self.evidence.paired(one, "confirm")) > 2 for one in self.faster())
            if arm.alive and not known and not hopeless(seen, CONFIRM_PAIRS):
                self._pair_up(arm, CONFIRM_PAIRS - 2, others_wait=True)

    def unseen(self, arms: Sequence[Arm]) -> None:
        """Nobody has won, and time is left: those that there was no time to look at before."""
        judged = [arm for arm in arms if arm.alive and self.evidence.can_judge(arm)]
        left = [arm for arm in judged if not self.evidence.measured(arm).differences]
        if left and not self.faster():
            self.finalists(left)

    def _may_win(self, arm: Arm) -> bool:
        """Not of a fix that was measured afresh with a better setting and did not fail."""
        better = any(
            one.alive and not self.evidence.numerics(one).harmful
            for one in self._looked_at
            if one.fixes[0][0] == arm.fixes[0][0]
        )
        return arm.alive and not better and not self.evidence.numerics(arm).harmful

    def itself(self) -> None:
        """The A/A candidate of pairs side by side, where two cost no more than an eighth."""
        launcher = self.launcher
        baseline = launcher.baseline
        if not launcher.pairs_up:
            return
        plain_s, left_s = launcher.expected_s(baseline), launcher.budget.left()
        share = _A_A_SHARE * (launcher.budget.seconds or math.inf) / max(2 * plain_s, 1e-9)
        kept_s = reserve_s(plain_s, left_s) if self.reserves else 0.0
        if left_s - kept_s < 2 * 2 * plain_s or share < 2:
            return
        for _ in range(int(min(share, FEWEST_PAIRS))):
            if left_s - kept_s >= 2 * plain_s:
                launcher.abba(baseline, "confirm", 1)
            left_s = launcher.budget.left()

    def _go_on_with(self, arm: Arm, kept_s: float, *, others_wait: bool) -> None:
        """More pairs of one that looks faster, where they now cost less than was expected.

        A first launch that compiles leaves its result in the cache for those after it. A gain that
        the time it works on cannot explain gets twice the pairs of any other. One that is
        confirmed already leaves the patch its time.
        """
        launcher, baseline = self.launcher, self.launcher.baseline
        while arm.alive:
            seen = self.evidence.paired(arm, "confirm")
            pair_s = launcher.expected_s(baseline) + launcher.expected_s(arm)
            wanted = CONFIRM_PAIRS * (2 if self.evidence.measured(arm).beyond_bound else 1)
            free_s = launcher.budget.left() - (kept_s if self.faster() else self._seeds_s(arm))
            more = int(min(wanted - len(seen), free_s / pair_s))
            if not seen or fmean(seen) < math.log1p(WORTH) or more < 1 or not self.same(arm):
                return
            more = more if more < 2 else more - more % 2
            self._plan_pairs(arm, more)
            self._pair_up(arm, more, others_wait=others_wait)

    def _plan_pairs(self, arm: Arm, pairs: int) -> None:
        """For the progress line: pairs from here on, after those that this phase has had."""
        launcher, last = self.launcher, self.launcher.plan
        done = last.done if last is not None and last.unit == "pair" else 0
        launcher.plan = Plan(
            phase="confirm",
            unit="pair",
            most=done + pairs,
            arms=[launcher.baseline, arm],
            done=done,
        )

    def _pair_up(self, arm: Arm, pairs: int, *, others_wait: bool) -> None:
        """Two pairs at a time; while others wait, only as long as a gain may still show.

        Stopping early for want of a gain never makes a false one; it leaves time for the next.
        """
        for done in range(0, pairs, 2):
            self.launcher.abba(arm, "confirm", min(2, pairs - done))
            if not arm.alive:
                return
            seen = self.evidence.paired(arm, "confirm")
            if others_wait and (hopeless(seen, pairs) or no_gain(seen)):
                return
            if fmean(seen or [0.0]) > math.log1p(WORTH) and not self.same(arm):
                return  # however fast
            launcher = self.launcher
            two_s = 2 * (launcher.expected_s(launcher.baseline) + launcher.expected_s(arm))
            seeds_s = self._seeds_s(arm)
            if seeds_s and launcher.budget.left() < two_s + seeds_s:
                return  # faster, and nobody would know whether it trains the same
