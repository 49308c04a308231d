"""A program that was observed once, and the searches and comparisons that start from there."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from torchdoctor import schema as words
from torchdoctor.advice import catalogue
from torchdoctor.advice.candidates import candidates
from torchdoctor.advice.diagnosis import diagnose
from torchdoctor.bench.engine import Engine
from torchdoctor.bench.measurement import ProgramLaunches, turns_of_trials
from torchdoctor.bench.pair_times import Estimator
from torchdoctor.bench.record import Recorder
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.machine.environment import environment
from torchdoctor.observe.shares import shares, with_inline_preparation
from torchdoctor.observe.window import PROFILER_WINDOWS, choose_window
from torchdoctor.schema import Candidate, FixSet, Interval, Pair, Recording
from torchdoctor.schema.errors import Inconclusive
from torchdoctor.schema.figures import fixes_with_settings
from torchdoctor.schema.specs import FixSpec
from torchdoctor.trials import compare
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.arms import FixFacts, fix_facts
from torchdoctor.trials.log import Budget
from torchdoctor.trials.numerics import Untouched, compare_training, trains_in_low_precision
from torchdoctor.trials.outcome import TrialResults
from torchdoctor.trials.search import SearchSettings, run_trials

os.environ["TORCHDOCTOR_COMPILE_CACHE"] = "0"  # each run compiles as a first one does
_TOGETHER = 0.3  # of the exhaustive search's time: for the best together


@dataclass
class Workload:
    """One program, observed once; searches start from what was seen."""

    recorder: Recorder
    recording: Recording
    seen: Any
    window: Any
    modules: dict[str, FixSpec]

    @classmethod
    @contextmanager
    def observed(
        cls, workload: words.Workload, folder: Path, budget_s: float
    ) -> Iterator[Workload]:
        """Observe and profile it as a run does."""
        sandbox = Sandbox.choose("auto", folder, workload)
        recorder = Recorder(workload, folder / "run", sandbox, 0, None, 600.0)
        try:
            seen = recorder.observe(None, 8.0, 30.0)
            profiled = recorder.profile(
                seen.steps_found.boundary, PROFILER_WINDOWS[0], 300.0, cold=False, forked=False
            )
            trace = profiled.largest().statistics
            recording = Recording(
                workload=workload,
                environment=environment(None),
                steps=seen.steps,
                processes=profiled.added_to(seen.processes, trace.path),
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

    def _launches(self) -> ProgramLaunches:
        """Return how launches are made: side by side where they can be."""
        turns = turns_of_trials(self.seen, self.window)
        return ProgramLaunches.of_trials(
            self.recorder,
            self.seen,
            self.window,
            None if isinstance(turns, str) else turns,
            loaders=self.recording.main.loaders,
        )

    def _specs(self) -> ArmSpecs:
        return ArmSpecs(self.modules, self.recording)

    def candidates(self) -> list[Candidate]:
        """Those of a run."""
        diagnosis = diagnose(self.recording, catalogue.checks(), catalogue.fixes())
        return candidates(self.recording, diagnosis, catalogue.fixes())[0]

    def search(self, tried: list[Candidate], budget_s: float, seed: int) -> TrialResults:
        """These candidates alone, as a run searches."""
        return run_trials(
            Engine(self._launches(), random.Random(seed)),
            self._specs(),
            tried,
            {x: FixFacts(keeps_results=fix.keeps_results) for x, fix in self.modules.items()},
            budget=Budget(budget_s),
            settings=SearchSettings(
                steps=replace(self.seen.steps, warmup_steps=self.window.warmup_steps), seed=seed
            ),
        )

    def _facts(self, ident: str) -> FixFacts:
        return fix_facts(self.modules[ident], self.recording)

    def exhaustive(self, tried: list[Candidate], budget_s: float, seed: int) -> FixSet:
        """Measure every candidate in pairs until the time is used, then the best together."""
        began, specs = time.monotonic(), self._specs()
        engine = Engine(self._launches(), random.Random(seed))
        arms = {number: one.fixes for number, one in enumerate(tried)}
        pairs: dict[int, list[Pair]] = {n: [] for n in arms}

        def left_s() -> float:
            return budget_s - (time.monotonic() - began)

        while pairs and left_s() > _TOGETHER * budget_s:
            for number in list(pairs):
                pair = engine.pair(specs.of(arms[number]), most_s=left_s())
                if isinstance(pair, Pair):
                    pairs[number].append(pair)
                else:
                    del pairs[number]
        gains = {number: _gain(measured) for number, measured in pairs.items() if measured}
        together = FixSet()
        for number in sorted(gains, key=lambda number: -gains[number]):
            known = not self._trains_the_same(tried[number], pairs[number])
            if gains[number] <= 0 or together.keys() & arms[number].keys() or known:
                continue
            grown = together.joined(arms[number])
            if together:
                added = [engine.pair(specs.of(grown), specs.of(together)) for _ in range(3)]
                if left_s() < 0 or _gain([x for x in added if isinstance(x, Pair)]) <= 0:
                    continue
            together = grown
        return together

    def _trains_the_same(self, one: Candidate, pairs: list[Pair]) -> bool:
        """Return False for a candidate that was seen to change training."""
        steps, facts = self.seen.steps, self._facts(one.fixes.first)
        untouched = Untouched(
            baselines=[pair.launches[0] for pair in pairs],
            warmup_steps=steps.warmup_steps,
            backwards_per_step=steps.backwards_per_step,
            low_precision=trains_in_low_precision(self.recording),
        )
        trials = [pair.launches[1] for pair in pairs]
        found = compare_training(trials, untouched, facts.keeps_results, facts.how)
        return found.classification != "changed" and not found.harmful

    def side_by_side(
        self, several: dict[str, FixSet], seed: int, number: int
    ) -> dict[str, Interval | None]:
        """Measure `number` fresh pairs of each with the untouched program; speed-ups against it.

        Raises:
            Inconclusive: one of them could not be measured.
        """
        engine, specs = Engine(self._launches(), random.Random(seed)), self._specs()
        found = {}
        for name, fixes in several.items():
            pairs = [engine.pair(specs.of(fixes)) for _ in range(number if fixes else 0)]
            if lost := [pair for pair in pairs if not isinstance(pair, Pair)]:
                raise Inconclusive(f"{fixes_with_settings(fixes)}: {lost[0].reason}")
            if fixes:
                found[name] = compare.interval([_difference(pair) for pair in pairs])
        return found


def _difference(pair: Pair) -> float:
    return Estimator(by="mean").difference(pair) or 0.0


def _gain(pairs: list[Pair]) -> float:
    return fmean(map(_difference, pairs)) if pairs else -math.inf
