"""The search: screen the candidates, confirm the best on fresh pairs, measure them together.

Whatever happens (budget, Ctrl-C, a program that fails), what was measured comes back as results.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchdoctor.trials.arms import Arm, Fixes, FixFacts, label
from torchdoctor.trials.ceilings import CeilingTrial, conditions, tried
from torchdoctor.trials.confirmation import Confirmation
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.launches import BothAtOnce, Launch, Launcher, SideBySide, Stopped
from torchdoctor.trials.outcome import Judgement, TrialResults, results, training_is_the_same
from torchdoctor.trials.patch_trial import measure_patch, patch_arm, patch_result
from torchdoctor.trials.samples import Preparation
from torchdoctor.trials.schedule import (
    FEWEST_PAIRS,
    NO_TIME,
    SEED_LAUNCHES,
    Budget,
    BudgetEnded,
)
from torchdoctor.trials.screening import Screen
from torchdoctor.trials.sizes import NextSettings, best_sizes, search_sizes
from torchdoctor.trials.stacking import Stacking
from torchdoctor.trials.switching import Switching
from torchdoctor.words import Candidate, ProgressEvent, StepStatistics, TriedCeiling
from torchdoctor.words.errors import Interrupted

_NO_SEEDS = (
    "The budget left no time for launches with other seeds, which would tell whether training "
    "changed."
)


def run_trials(
    launch: Launch,
    candidates: Sequence[Candidate],
    fixes: Mapping[str, FixFacts],
    *,
    budget: Budget,
    steps: StepStatistics | None = None,
    progress: Callable[[ProgressEvent], None] | None = None,
    allow_training_changes: bool = False,
    low_precision: bool = False,
    expected_launch_s: float | None = None,
    warmup_steps: int | None = None,
    seed: int = 0,
    patch: Callable[[Fixes], str | None] | None = None,
    switching: Switching | None = None,
    ceilings: Sequence[CeilingTrial] = (),
    growing: Mapping[str, NextSettings] | None = None,
    both_at_once: BothAtOnce | str | None = None,
) -> TrialResults:
    """Try the candidates against the untouched program.

    Args:
        launch: starts the program once; `[]` is the untouched program.
        candidates: most promising first.
        fixes: what to know of each fix, by id.
        budget: wall time for all launches.
        steps: of the observed launch.
        progress: told before and after each launch.
        allow_training_changes: fixes of risk 3 may be recommended.
        low_precision: the untouched program computes in bfloat16, float16 or TF32
            (`numerics.trains_in_low_precision`).
        expected_launch_s: seconds of a launch of the untouched program, for the first one.
        warmup_steps: iterations before the window of each launch; None: as in `steps`.
        seed: of the order within rounds.
        patch: makes these fixes permanent in a patch, so that a launch of `[(PATCH, {})]` runs the
            patched program; a sentence where that cannot be done. None: no patch is measured.
        switching: starts the program once with fixes that take turns; None: every sample is a
            launch.
        ceilings: to be tried within the switching launch.
        growing: fixes whose setting is searched from its first candidate on (`sizes`).
        both_at_once: starts two launches that take turns, for pairs side by side; a half sentence
            where the launches of a pair follow each other and why; None: that is wanted.
    """
    if steps is not None and warmup_steps is not None:
        steps = replace(steps, warmup_steps=warmup_steps)
    launcher = Launcher(
        launch,
        budget,
        progress=progress,
        order=random.Random(seed),
        expected_launch_s=expected_launch_s,
        side_by_side=SideBySide.of(both_at_once),
    )
    arms = [
        Arm(
            key=f"candidate-{number}",
            fixes=[(one.fix, dict(one.settings)), *one.also.items()],
            facts=_facts_of([one.fix, *one.also], fixes),
            candidate=one,
        )
        for number, one in enumerate(candidates)
    ]
    evidence = Evidence(launcher, steps, low_precision)
    search = _Search(launcher, arms, evidence, allow_training_changes, patch)
    search.growing, search.observed = growing or {}, steps
    search.in_turns = both_at_once if isinstance(both_at_once, str) else None
    search.switching, search.ceilings = switching, [(one, one.arm()) for one in ceilings]
    search.run()
    return search.results()


def _facts_of(names: Sequence[str], fixes: Mapping[str, FixFacts]) -> FixFacts:
    """Of fixes that are switched on together: the riskiest's promise, all one-time costs."""
    known = [fixes.get(name, FixFacts()) for name in names]
    riskiest = max(known, key=lambda facts: facts.risk)
    return replace(
        riskiest,
        setup_s=sum(facts.setup_s for facts in known),
        includes=frozenset().union(*(facts.includes for facts in known)),
        phases=known[0].phases,
        switches=all(facts.switches for facts in known),
        how=Preparation.together(facts.how for facts in known),
        doubted=any(facts.doubted for facts in known),
    )


class _Search:
    """The phases, in order. State is the launcher's log, and why the search ended."""

    def __init__(
        self,
        launcher: Launcher,
        arms: list[Arm],
        evidence: Evidence,
        allow_changes: bool,
        patch: Callable[[Fixes], str | None] | None,
    ) -> None:
        self.switching: Switching | None = None
        self.in_turns: str | None = None  # why launches follow each other
        self.ceilings: list[tuple[CeilingTrial, Arm]] = []
        self.growing: Mapping[str, NextSettings] = {}
        self.observed: StepStatistics | None = None
        self.launcher, self.arms, self.evidence = launcher, arms, evidence
        self.allow_changes, self.make_patch = allow_changes, patch
        self.patch: Arm | None = None
        self.no_patch: str | None = None
        self.stacking = Stacking(
            launcher,
            evidence,
            arms,
            judge=self.judge,
            settle=lambda arms: self.settle_training(arms, confirmed=True),
            reserves=patch is not None,
        )
        self.ended: str | None = None
        self.interrupted = False
        self.doubts: list[str] = []

    def run(self) -> None:
        """All phases, until done or ended."""
        if not self.arms and not self.ceilings:
            return
        try:
            finalists, others = self.screened()
            if not self.arms:
                return
            finalists = self.settle_training(finalists, confirmed=False)
            confirmation = Confirmation(
                self.launcher,
                self.evidence,
                faster=self.winners,
                same=self.trains_the_same,
                tell=self.name_best,
                reserves=self.make_patch is not None,
            )
            self.stacking.promised(finalists)
            if not self.winners():
                confirmation.finalists(finalists)
                confirmation.others(others)
                confirmation.unseen(others)
            confirmation.itself()
            self.winners()
            self.stacking.run()
            self.ended = NO_TIME if self.stacking.short_of_time else None
            self.patched()
        except BudgetEnded:
            self.ended = NO_TIME
        except (KeyboardInterrupt, Interrupted):
            self.ended, self.interrupted = "interrupted", True
        except Stopped as stop:
            self.ended = "the trials were stopped"
            self.doubts.append(str(stop))
        if self.ended is not None and self.no_patch is None:
            composed = self.patch is not None or self.compose_patch() is not None
            self.no_patch = self.no_patch or (self.ended if composed else None)

    def screened(self) -> tuple[list[Arm], list[Arm]]:
        """Who is worth fresh pairs, best first, and who else may win."""
        arms = self.grown()
        try:
            return Screen(
                self.launcher,
                self.evidence,
                arms,
                switching=self.switching,
                ceilings=[arm for _, arm in self.ceilings],
                tell=self.name_best,
            ).run()
        finally:  # values that a ladder added
            self.arms += [arm for arm in arms if arm not in self.arms]

    def grown(self) -> list[Arm]:
        """The arms to screen: of a fix whose setting is searched, the best ones found."""
        for fix, following in self.growing.items():
            first = next((arm for arm in self.arms if arm.fixes[0][0] == fix), None)
            if first is not None:
                search_sizes(self.launcher, self.arms, first, following)
        left_out: list[Arm] = []
        for fix in self.growing:
            sizes = [arm for arm in self.arms if arm.fixes[0][0] == fix]
            if any(arm.slots for arm in sizes):
                best = best_sizes(sizes, self.evidence.per_step)
                left_out += [arm for arm in sizes if arm not in best]
        return [arm for arm in self.arms if arm not in left_out]

    def winners(self) -> list[Arm]:
        """Those that are faster by what is known now, and train the same."""
        self.settle_training([one.arm for one in self.judge().faster()], confirmed=True)
        return [one.arm for one in self.judge().recommendable()]

    def trains_the_same(self, arm: Arm) -> bool:
        """Or may still turn out to: the launches that would tell did not fit in yet."""
        self.settle_training([arm], confirmed=True)
        one = self.evidence.measured(arm)
        open_question = one.numerics.needs_seeds and len(self.launcher.seeds) < SEED_LAUNCHES
        return open_question or training_is_the_same(one, self.allow_changes)

    def settle_training(self, arms: list[Arm], *, confirmed: bool) -> list[Arm]:
        """Without those that changed training; other seeds are launched where only they tell."""
        launcher, baseline = self.launcher, self.launcher.baseline
        open_questions = any(
            self.evidence.numerics(arm).needs_seeds for arm in arms if arm.facts.risk < 3
        )
        launched = len(launcher.seeds)
        if open_questions and launched < SEED_LAUNCHES:
            # Before anything is confirmed, the fewest pairs of the best come first.
            pairs = [] if confirmed else [baseline, arms[0]] * FEWEST_PAIRS
            if launcher.affords(*[baseline] * SEED_LAUNCHES, *pairs):
                for offset in range(launched + 1, SEED_LAUNCHES + 1):
                    launcher.run(baseline, "seeds", seed_offset=offset)
            elif confirmed and _NO_SEEDS not in self.doubts:
                self.doubts.append(_NO_SEEDS)
        open_or_same = []
        for arm in arms:
            one = self.evidence.measured(arm)
            same = training_is_the_same(one, self.allow_changes)
            if not arm.timings or same or one.numerics.needs_seeds:
                open_or_same.append(arm)
        return open_or_same

    def patched(self) -> None:
        """The patch that makes the recommended fixes permanent, as a trial of its own."""
        best = self.compose_patch()
        if best is not None and self.no_patch is None:
            launcher = self.launcher
            more_s = launcher.expected_s(best) - launcher.expected_s(launcher.baseline)
            self.patch = patch_arm(best, max(more_s, 0.0))
            try:
                measure_patch(self.launcher, self.patch, best)
            except BudgetEnded:
                self.no_patch = NO_TIME

    def compose_patch(self) -> Arm | None:
        """The patch as text, which takes no launch; the arm that it makes permanent."""
        best = next(iter(self.judge().recommendable()), None)
        if best is None or self.make_patch is None:
            return None
        self.no_patch = self.make_patch(best.arm.fixes)
        return best.arm

    def judge(self) -> Judgement:
        """Verdicts by what is known now."""
        return Judgement(self.evidence, [*self.arms, *self.stacking.measured()], self.allow_changes)

    def name_best(self, arms: Sequence[Arm]) -> None:
        """The best so far, for the progress line."""
        measured = [self.evidence.measured(arm) for arm in arms if arm.alive]
        best = max(measured, key=lambda one: one.gain, default=None)
        if best is not None and best.gain > 0:
            self.launcher.best = f"{label(best.arm.fixes)} {math.exp(best.gain):.2f}x"

    def beside_doubts(self) -> list[str]:
        """Why launches were not compared side by side, where any were compared."""
        if self.launcher.side_by_side is not None:
            return self.launcher.side_by_side.doubts
        if self.in_turns is None or not self.launcher.rounds:
            return []
        return [
            f"Launches followed each other, because {self.in_turns}: that sees less in the same "
            "time than side by side."
        ]

    def tried_ceilings(self) -> list[TriedCeiling]:
        """What became of the ceilings."""
        trials, arms = [one for one, _ in self.ceilings], [arm for _, arm in self.ceilings]
        looked = None if self.switching is None else self.launcher.switched_arms
        alike = conditions(self.launcher.switched, self.observed)
        return tried(trials, arms, self.evidence, looked, alike)

    def results(self) -> TrialResults:
        """What was found, however the search ended."""
        return results(
            self.evidence,
            self.judge(),
            baseline=self.launcher.baseline,
            launches=self.launcher.done,
            ended=self.ended,
            doubts=[
                *self.doubts,
                *self.stacking.doubts,
                *self.stacking.unweighed(),
                *self.beside_doubts(),
            ],
            interrupted=self.interrupted,
            patch=patch_result(self.evidence, self.patch, self.no_patch),
            ceilings=self.tried_ceilings(),
        )
