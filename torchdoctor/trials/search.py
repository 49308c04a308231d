"""The executor of the search: it measures what the policy asks for, until the policy stops.

Whatever happens (budget, Ctrl-C, a program that fails), what was measured comes back as results.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchdoctor.trials.arm_specs import PATCH
from torchdoctor.trials.arms import Arm, Fixes, label
from torchdoctor.trials.beliefs import Beliefs, Members, Results
from torchdoctor.trials.ceilings import CeilingTrial, conditions, tried
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.launches import BothAtOnce, Launcher, Stopped
from torchdoctor.trials.outcome import Judgement, TrialResults, results, training_is_the_same
from torchdoctor.trials.patch_trial import patch_arm, patch_result
from torchdoctor.trials.priors import believed_arm, believed_step, together
from torchdoctor.trials.schedule import NO_TIME, SEED_LAUNCHES, BudgetEnded
from torchdoctor.trials.search_policy import Action, Prices, SearchPolicy
from torchdoctor.trials.sizes import NextSettings, best_sizes, search_sizes
from torchdoctor.trials.switching import (
    FEWEST_ROUNDS,
    Switching,
    affordable_ceilings,
    switch_arms,
    switch_s,
)
from torchdoctor.words import StepStatistics, TriedCeiling
from torchdoctor.words.errors import Interrupted

PAIR, SEEDS = "confirm", "seeds"  # phases in the log
_NO_SEEDS = (
    "The budget left no time for launches with other seeds, which would tell whether training "
    "changed."
)
_ATTEMPTS = 2  # at measuring a pair


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The limits of the search, and its knowledge of the program.

    Attributes:
        steps: of the observed launch, with the warmup of each launch of the search.
        expected_launch_s: seconds of a launch of the untouched program, for the first one.
        seed: of the order of launches, and of the policy's samples.
        allow_training_changes: fixes of risk 3 may be recommended.
        low_precision: the untouched program computes in bfloat16, float16 or TF32
            (`numerics.trains_in_low_precision`).
        make_patch: makes these fixes permanent in a patch, so that a launch of `[(PATCH, {})]`
            runs the patched program; a sentence if that cannot be done. None: no patch is
            measured.
        both_at_once: starts two launches that take turns, for pairs side by side; half a sentence
            if the launches of a pair follow each other and why; None: that is wanted.
        switching: starts the program once with arms that take turns; None: every sample is a
            launch.
        ceilings: costs to be taken away within a switching launch, the most telling first.
        growing: fixes whose setting is searched from its first candidate on (`sizes`), and how.
    """

    steps: StepStatistics | None = None
    expected_launch_s: float | None = None
    seed: int = 0
    allow_training_changes: bool = False
    low_precision: bool = False
    make_patch: Callable[[Fixes], str | None] | None = None
    both_at_once: BothAtOnce | str | None = None
    switching: Switching | None = None
    ceilings: Sequence[CeilingTrial] = ()
    growing: Mapping[str, NextSettings] = field(default_factory=dict)


class Search:
    """State is the launcher's log, the sets that were put together, and why the search ended.

    Args:
        launcher: runs launches within the budget.
        evidence: reads its log.
        arms: candidates, most promising first.
        settings: of this search.
    """

    def __init__(
        self, launcher: Launcher, evidence: Evidence, arms: list[Arm], settings: SearchSettings
    ) -> None:
        self._launcher, self._evidence, self._settings = launcher, evidence, settings
        self._candidates = arms
        self._left_out: set[str] = set()  # sizes that others are better than
        self._sets: dict[Members, Arm] = {}
        self._ceilings = [(trial, trial.arm()) for trial in settings.ceilings]
        self._switch_launches, self._no_seeds = 0, False
        self._too_dear: set[Members] = set()
        self._attempts: Counter[Members] = Counter()
        self._patch: Arm | None = None
        self._no_patch: str | None = None
        self._ended: str | None = None
        self._beliefs: Beliefs | None = None  # of the last results
        self._interrupted = False
        self._doubts: list[str] = []

    # -- the run

    def run(self) -> None:
        """Measure until the policy stops, or something ends the search."""
        try:
            self._search_sizes()
            self._follow_policy()
        except BudgetEnded:
            self._ended = NO_TIME
        except (KeyboardInterrupt, Interrupted):
            self._ended, self._interrupted = "interrupted", True
        except Stopped as stop:
            self._ended = "the trials were stopped"
            self._doubts.append(str(stop))
        if self._patch is not None:
            self._no_patch = self._no_patch or self._ended
        elif self._no_patch is None:
            composed = self._compose_patch() is not None
            if self._no_patch is None and composed:
                self._no_patch = self._ended or NO_TIME

    def _follow_policy(self) -> None:
        if not any(arm.facts.switches for arm in self._candidates):
            self._try_ceilings_alone()
        while True:
            action = self._policy().next()
            if action.kind == "stop":
                self._try_ceilings_alone()
                self._ended = NO_TIME if action.reason == "time" else None
                return
            self._measure(action)

    def _measure(self, action: Action) -> None:
        self._launcher.plan = None
        if action.kind == "switch":
            self._switch(action)
        elif action.kind == "seeds":
            self._launch_seeds()
        elif action.kind == "patch":
            self._measure_patch(action.members)
        else:
            self._measure_pair(action.members)
        self._name_best()

    def _measure_pair(self, members: Members) -> None:
        arm = self._arm(members)
        before = len(self._evidence.paired(arm, PAIR))
        try:
            self._launcher.abba(arm, PAIR, 1)
        except BudgetEnded:
            self._too_dear.add(members)
            return
        if not arm.alive and len(members) > 1:
            self._blame(members, arm)
        if arm.alive and len(self._evidence.paired(arm, PAIR)) == before:
            self._attempts[members] += 1
            if self._attempts[members] >= _ATTEMPTS:
                self._too_dear.add(members)

    def _blame(self, members: Members, failed: Arm) -> None:
        """Mark the fix that could not be applied, if a single member never ran by itself."""
        untried = [arm for name in members if not (arm := self._by_key[name]).timings]
        broken = "could not be applied" in (failed.failed or "")
        if len(untried) == 1 and (failed.refused or broken):
            untried[0].refused, untried[0].failed = failed.refused, failed.failed

    def _switch(self, action: Action) -> None:
        assert self._settings.switching is not None
        arms = [self._by_key[name] for name in action.arms]
        self._switch_launches += 1
        ceilings = [arm for _, arm in self._ceilings]
        switch_arms(self._launcher, self._settings.switching, arms, ceilings, action.rounds)

    def _try_ceilings_alone(self) -> None:
        """Launch the program for its ceilings alone, if that costs a tenth of the time left."""
        switching, ceilings = self._settings.switching, [arm for _, arm in self._ceilings]
        if switching is None or not ceilings or self._launcher.switched_arms:
            return
        if affordable_ceilings(self._launcher, switching, [], ceilings):
            switch_arms(self._launcher, switching, [], ceilings, FEWEST_ROUNDS)

    def _launch_seeds(self) -> None:
        """Launch the untouched program with other seeds, which tell whether training changed."""
        launcher = self._launcher
        if not launcher.affords(*[launcher.baseline] * SEED_LAUNCHES):
            self._no_seeds = True
            self._doubts.append(_NO_SEEDS)
            return
        for offset in range(1, SEED_LAUNCHES + 1):
            launcher.run(launcher.baseline, SEEDS, seed_offset=offset)
        self._no_seeds = len(launcher.seeds) < SEED_LAUNCHES  # they failed: nothing else tells

    def _compose_patch(self) -> Arm | None:
        """Make the patch of the recommended fixes without a launch; return their arm."""
        best = self._judge().recommended()
        if best is None or self._settings.make_patch is None:
            return None
        self._no_patch = self._settings.make_patch(best.arm.fixes)
        return best.arm

    def _measure_patch(self, members: Members) -> None:
        """Measure a pair of the patched program."""
        launcher = self._launcher
        if self._patch is None:
            like = self._compose_patch()
            if like is None or self._no_patch is not None:
                self._no_patch = self._no_patch or "nothing is recommended"
                return
            more_s = launcher.expected_s(like) - launcher.expected_s(launcher.baseline)
            self._patch = patch_arm(like, max(more_s, 0.0))
        try:
            launcher.abba(self._patch, PATCH, 1)
        except BudgetEnded:
            self._no_patch = NO_TIME

    def _search_sizes(self) -> None:
        """Search the settings that are found by trying, and leave all but the best out."""
        launcher, growing = self._launcher, self._settings.growing
        for fix, following in growing.items():
            first = next((arm for arm in self._candidates if arm.fixes[0][0] == fix), None)
            if first is not None:
                search_sizes(launcher, self._candidates, first, following)
        for fix in growing:
            sizes = [arm for arm in self._candidates if arm.fixes[0][0] == fix]
            if any(arm.slots for arm in sizes):
                best = best_sizes(sizes, self._evidence.per_step)
                self._left_out |= {arm.key for arm in sizes if arm not in best}

    # -- for the policy

    def _policy(self) -> SearchPolicy:
        measured = self._results()
        if self._beliefs is None or self._beliefs.results != measured:
            arms = [believed_arm(arm) for arm in self._candidates]
            step = believed_step(self._settings.steps)
            self._beliefs = Beliefs(arms, step, measured, self._settings.seed)
        return SearchPolicy(self._beliefs, self._prices())

    def _results(self) -> Results:
        evidence, launcher = self._evidence, self._launcher
        measured = {frozenset([arm.key]): arm for arm in self._candidates} | self._sets
        alive = {members: arm for members, arm in measured.items() if arm.alive}
        pairs = {members: evidence.paired(arm, PAIR) for members, arm in alive.items()}
        opened = {
            members
            for members, arm in alive.items()
            if arm.facts.risk < 3 and evidence.numerics(arm).needs_seeds
        }
        out = {members for members, arm in measured.items() if self._is_out(arm)} - opened
        return Results(
            pairs={members: logs for members, logs in pairs.items() if logs},
            blocks=evidence.block_gains([arm for arm in self._candidates if arm.alive]),
            failed=frozenset(name for members in out if len(members) == 1 for name in members)
            | self._left_out,
            failed_sets=[members for members in out if len(members) > 1],
            open_training=frozenset(opened),
            too_dear=frozenset(self._too_dear),
            switch_launches=self._switch_launches,
            seeds_done=self._no_seeds or len(launcher.seeds) >= SEED_LAUNCHES,
            patch_pairs=len(evidence.paired(self._patch, PATCH)) if self._patch else 0,
            side_by_side=launcher.pairs_up,
        )

    def _is_out(self, arm: Arm) -> bool:
        """Return whether an arm failed, changed training or cannot be judged."""
        if not arm.alive or not self._evidence.can_judge(arm):
            return True
        measured = self._evidence.measured(arm)
        allow = self._settings.allow_training_changes
        return bool(arm.timings) and not training_is_the_same(measured, allow)

    def _prices(self) -> Prices:
        launcher, switching = self._launcher, self._settings.switching
        patched = self._patch is None or self._patch.alive

        def seconds(names: Sequence[str], rounds: int) -> float:
            assert switching is not None
            return switch_s(switching, [self._by_key[name] for name in names], rounds)

        return Prices(
            budget_s=launcher.budget.seconds or math.inf,
            left_s=launcher.budget.left(),
            launch_s=launcher.expected_s(launcher.baseline),
            once_s={arm.key: launcher.costs.once_s(arm) for arm in self._candidates},
            switch_s=None if switching is None else seconds,
            patch=self._settings.make_patch is not None and self._no_patch is None and patched,
        )

    @property
    def _by_key(self) -> dict[str, Arm]:
        return {arm.key: arm for arm in self._candidates}

    def _arm(self, members: Members) -> Arm:
        """Return the arm of a set, which is put together when it is first needed."""
        if len(members) == 1:
            return self._by_key[next(iter(members))]
        if members not in self._sets:
            gains = {name: self._policy().beliefs.mean_gain(frozenset([name])) for name in members}
            ordered = [self._by_key[name] for name in sorted(gains, key=lambda name: -gains[name])]
            setup_s = self._launcher.costs.once_together_s(ordered)
            self._sets[members] = together(ordered, f"set-{len(self._sets)}", setup_s)
        return self._sets[members]

    # -- for the report

    def _judge(self) -> Judgement:
        arms = {frozenset([arm.key]): arm for arm in self._candidates} | self._sets
        return Judgement(
            self._evidence, arms, self._policy(), self._settings.allow_training_changes
        )

    def _name_best(self) -> None:
        """Tell the progress line the best claim so far."""
        best = self._judge().recommended()
        if best is not None:
            self._launcher.best = f"{label(best.arm.fixes)} {math.exp(best.gain):.2f}x"

    def _why_in_turns(self) -> list[str]:
        """Return why launches were not compared side by side, if any were compared."""
        beside, why = self._launcher.side_by_side, self._settings.both_at_once
        if beside is not None:
            return beside.doubts
        if not isinstance(why, str) or not self._launcher.rounds:
            return []
        return [
            f"Launches followed each other, because {why}: that sees less in the same time than "
            "side by side."
        ]

    def _tried_ceilings(self) -> list[TriedCeiling]:
        trials, arms = [trial for trial, _ in self._ceilings], [arm for _, arm in self._ceilings]
        looked = None if self._settings.switching is None else self._launcher.switched_arms
        alike = conditions(self._launcher.switched, self._settings.steps)
        return tried(trials, arms, self._evidence, looked, alike)

    def results(self) -> TrialResults:
        """Return what was measured, however the search ended."""
        judgement = self._judge()
        rows = results(self._evidence, judgement, self._launcher.baseline, self._ended)
        sigma_log = judgement.policy.beliefs.sigma_log()
        return replace(
            rows,
            launches=self._launcher.done,
            doubts=[*self._doubts, *rows.doubts, *self._why_in_turns()],
            interrupted=self._interrupted,
            patch=patch_result(self._evidence, self._patch, self._no_patch, sigma_log),
            ceilings=self._tried_ceilings(),
        )
