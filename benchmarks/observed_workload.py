"""A program that was observed once, and the searches and comparisons that start from there."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from torchdoctor.advice import catalogue
from torchdoctor.advice.candidates import candidates
from torchdoctor.advice.diagnosis import diagnose
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.workload import workload_of
from torchdoctor.machine.environment import environment
from torchdoctor.observe.shares import shares, with_inline_preparation
from torchdoctor.observe.window import choose_window
from torchdoctor.pairs.record import Recorder
from torchdoctor.trials import compare
from torchdoctor.trials.arms import Arm, Fixes, FixFacts, label
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.fix_facts import fix_facts
from torchdoctor.trials.launches import Launcher, SideBySide
from torchdoctor.trials.numerics import trains_in_low_precision
from torchdoctor.trials.outcome import TrialResults, training_is_the_same
from torchdoctor.trials.rounds import differences
from torchdoctor.trials.run_trials import run_trials
from torchdoctor.trials.schedule import Budget, BudgetEnded
from torchdoctor.trials.switched_trials import SwitchedTrials
from torchdoctor.trials.timed_launch import TimedLaunch, turns_of_trials
from torchdoctor.words import Candidate, Interval, Recording
from torchdoctor.words.errors import Inconclusive
from torchdoctor.words.specs import FixSpec

_SIDE_BY_SIDE = 8  # pairs of both results with the untouched program
_TOGETHER = 0.3  # of the exhaustive search's time: for the best together


@dataclass
class Workload:
    """One sample, observed once; searches start from what was seen."""

    recorder: Recorder
    recording: Recording
    seen: Any
    window: Any
    modules: dict[str, FixSpec]

    @classmethod
    @contextmanager
    def observed(cls, script: Path, folder: Path, budget_s: float) -> Iterator[Workload]:
        """Observe and profile it as a run does."""
        workload = workload_of([str(script)], cwd=str(script.parent))
        sandbox = Sandbox.choose("auto", folder, workload)
        recorder = Recorder(workload, folder / "run", sandbox, 0, None, 600.0)
        try:
            seen = recorder.observe(None, 8.0, 30.0)
            profiled = recorder.profile(seen.found.boundary, 10, 300.0)
            trace = profiled.trace
            recording = Recording(
                workload=workload,
                environment=environment(None),
                steps=seen.steps,
                processes=profiled.added_to(seen.processes),
                sensors=seen.sensors,
                trace=trace,
                shares=shares(seen.steps, trace),
            )
            window = choose_window(seen.steps, budget_s, recording.main.loaders)
            found = with_inline_preparation(recording)
            yield cls(recorder, found, seen, window, dict(catalogue.fixes()))
        finally:
            recorder.close()
            sandbox.close()

    def launch(self, budget: Budget) -> TimedLaunch:
        """Fixes in, a sample out."""
        return TimedLaunch(
            self.recorder, self.seen, self.window, self.modules, budget.left, self.recording
        )

    def launcher(self, budget: Budget, seed: int) -> Launcher:
        """Rounds of launches, side by side where they can be."""
        launch, turns = self.launch(budget), turns_of_trials(self.recorder, self.seen, self.window)
        return Launcher(
            launch,
            budget,
            order=random.Random(seed),
            side_by_side=SideBySide.of(launch.both_at_once(turns)),
        )

    def candidates(self) -> list[Candidate]:
        """Those of a run."""
        diagnosis = diagnose(self.recording, catalogue.checks(), catalogue.fixes())
        return candidates(self.recording, diagnosis, catalogue.fixes())[0]

    def search(self, tried: list[Candidate], budget_s: float, seed: int) -> TrialResults:
        """These candidates alone, as a run searches."""
        budget = Budget(budget_s)
        loaders = self.recording.main.loaders
        launch, turns = self.launch(budget), turns_of_trials(self.recorder, self.seen, self.window)
        return run_trials(
            launch,
            tried,
            {ident: self._null_facts(module) for ident, module in self.modules.items()},
            budget=budget,
            steps=self.seen.steps,
            warmup_steps=self.window.warmup_steps,
            seed=seed,
            both_at_once=launch.both_at_once(turns),
            switching=SwitchedTrials.choose(
                self.recorder, self.seen, self.window, loaders, self.modules, budget.left
            ),
        )

    def _null_facts(self, fix: FixSpec) -> FixFacts:
        return FixFacts(keeps_results=fix.keeps_results, switches=fix.when == "between steps")

    def _facts(self, ident: str) -> FixFacts:
        return fix_facts(self.modules[ident], self.recording)

    def exhaustive(self, tried: list[Candidate], budget_s: float, seed: int) -> Fixes:
        """Every candidate in rounds until the time is used, then the best of them together."""
        budget = Budget(budget_s)
        launcher = self.launcher(budget, seed)
        arms = [_arm(f"all-{n}", one, self._facts(one.fix)) for n, one in enumerate(tried)]
        try:
            while budget.left() > _TOGETHER * budget_s and any(arm.alive for arm in arms):
                launcher.round(arms, "screen")
        except BudgetEnded:
            pass
        gains = {arm.key: _gain(launcher, arm) for arm in arms}
        evidence = Evidence(launcher, self.seen.steps, trains_in_low_precision(self.recording))
        same = [a for a in arms if training_is_the_same(evidence.measured(a), False)]
        ranked = sorted((a for a in same if a.alive), key=lambda a: -gains[a.key])
        together: Fixes = []
        for arm in ranked:
            names = {fix for fix, _ in together}
            if gains[arm.key] <= 0 or names & {fix for fix, _ in arm.fixes}:
                continue
            grown = Arm(key=f"with-{arm.key}", fixes=[*together, *arm.fixes])
            before = Arm(key=f"without-{arm.key}", fixes=together)
            try:
                for _ in range(3 if together else 0):
                    launcher.round([grown, before], "stack")
            except BudgetEnded:
                break
            if not together or _gain(launcher, grown) > _gain(launcher, before):
                together = grown.fixes
        return together

    def side_by_side(self, several: dict[str, Fixes], seed: int) -> dict[str, Interval | None]:
        """Fresh rounds of these and the untouched program; speed-ups against it.

        Raises:
            Inconclusive: one of them could not be measured.
        """
        budget = Budget(None)
        launcher = self.launcher(budget, seed)
        arms = [Arm(key=name, fixes=fixes) for name, fixes in several.items() if fixes]
        for _ in range(_SIDE_BY_SIDE if arms else 0):
            launcher.round(arms, "confirm")
        for arm in arms:
            if not arm.alive:
                raise Inconclusive(f"{label(arm.fixes)}: {arm.failed or arm.refused}")
        return {arm.key: compare.interval(_differences(launcher, arm)) for arm in arms}


def _arm(key: str, one: Candidate, facts: FixFacts) -> Arm:
    fixes = [(one.fix, dict(one.settings)), *one.also.items()]
    return Arm(key=key, fixes=fixes, facts=facts, candidate=one)


def _differences(launcher: Launcher, arm: Arm) -> list[float]:
    return differences(
        launcher.rounds, arm.key, lambda timing: compare.seconds_per_sample(timing, "mean")
    )


def _gain(launcher: Launcher, arm: Arm) -> float:
    found = _differences(launcher, arm)
    return fmean(found) if found else -math.inf
