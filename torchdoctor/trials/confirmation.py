"""Fresh pairs for those that screening left: the only figures that count."""

from __future__ import annotations

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
    WORTH,
    hopeless,
    plan_confirmation,
)

_A_A_SHARE = 0.1  # of the budget left


class Confirmation:
    """Who is measured afresh, in how many pairs, and when that is enough.

    Args:
        launcher: runs the pairs, within the budget.
        evidence: what they say.
        faster: who is faster by what is known now.
        tell: of the arms that were measured last, for the progress line.
        reserves: whether some time is kept for the patch.
    """

    def __init__(
        self,
        launcher: Launcher,
        evidence: Evidence,
        *,
        faster: Callable[[], Sequence[Arm]],
        tell: Callable[[Sequence[Arm]], None],
        reserves: bool,
    ) -> None:
        self.launcher, self.evidence = launcher, evidence
        self.faster, self.tell, self.reserves = faster, tell, reserves

    def finalists(self, finalists: list[Arm]) -> None:
        """Fresh pairs, best first, for as many as the budget allows; the next if nobody wins.

        One whose pair takes too long by now (it compiles) leaves the time to those after it.
        """
        launcher, baseline = self.launcher, self.launcher.baseline
        while finalists := [arm for arm in finalists if launcher.affords(baseline, arm)]:
            baseline_s, left_s = launcher.expected_s(baseline), launcher.budget.left()
            kept_s = reserve_s(baseline_s, left_s) if self.reserves else 0.0  # for the patch
            expected_s = [launcher.expected_s(arm) for arm in finalists]
            plan = plan_confirmation(expected_s, baseline_s, left_s - kept_s, launcher.pairs_up)
            chosen, finalists = finalists[: plan.finalists], finalists[plan.finalists :]
            if len(chosen) == 1:
                self._plan_pairs(chosen[0], max(1, plan.pairs))
                self._pair_up(chosen[0], max(1, plan.pairs), others_wait=bool(finalists))
                self._go_on_with(chosen[0], kept_s, others_wait=bool(finalists))
            else:
                arms = launcher.round_of(chosen)
                most = plan.pairs * len(arms)
                launcher.plan = Plan(phase="confirm", unit="launch", most=most, arms=arms)
                for _ in range(plan.pairs):
                    launcher.round(chosen, "confirm")
                for arm in chosen:
                    if self.evidence.measured(arm).beyond_bound:
                        self._go_on_with(arm, kept_s, others_wait=bool(finalists))
            self.tell(chosen)
            if self.faster():
                return

    def others(self, others: list[Arm]) -> None:
        """Nobody has won, and time is left: those that screening could not tell from a gain.

        Two pairs each, for as many as leave time to go on with one; then on with the best, and
        first with those that two pairs call faster: of many, some do by chance.
        """
        launcher = self.launcher
        arms = [arm for arm in others if not self.evidence.numerics(arm).harmful]
        while arms and not launcher.affords(
            *[launcher.baseline, launcher.baseline] * 2, *[launcher.baseline, *arms] * 2
        ):
            arms = arms[:-1]
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

    def itself(self) -> None:
        """The A/A candidate of pairs side by side, in a tenth of the time that is left."""
        launcher = self.launcher
        beside, baseline = launcher.side_by_side, launcher.baseline
        if beside is None or not beside.suits(baseline, baseline):
            return
        pair_s = 2 * launcher.expected_s(baseline)
        share = min(_A_A_SHARE * launcher.budget.left() / max(pair_s, 1e-9), FEWEST_PAIRS)
        for _ in range(int(share) if share >= 2 else 0):
            beside.pair(launcher, baseline, baseline, "confirm")

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
            free_s = launcher.budget.left() - (kept_s if self.faster() else 0.0)
            more = int(min(wanted - len(seen), free_s / pair_s))
            if not seen or fmean(seen) < math.log1p(WORTH) or more < 1:
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
            if others_wait and hopeless(self.evidence.paired(arm, "confirm"), pairs):
                return
