"""The search of one run: candidates in, rows of the report and a recommendation out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torchdoctor.trials.arms import Arm, Fixes, FixFacts
from torchdoctor.trials.ceilings import CeilingTrial
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.launches import BothAtOnce, Launch, Launcher, SideBySide
from torchdoctor.trials.outcome import TrialResults
from torchdoctor.trials.priors import facts_together, with_further_settings
from torchdoctor.trials.schedule import Budget
from torchdoctor.trials.search import Search, SearchSettings
from torchdoctor.trials.sizes import NextSettings
from torchdoctor.trials.switching import Switching
from torchdoctor.words import Candidate, ProgressEvent, StepStatistics


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
        seed: of the order of launches, and of the policy's samples.
        patch: makes these fixes permanent in a patch, so that a launch of `[(PATCH, {})]` runs the
            patched program; a sentence where that cannot be done. None: no patch is measured.
        switching: starts the program once with fixes that take turns; None: every sample is a
            launch.
        ceilings: to be tried within a switching launch.
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
            fixes=[(candidate.fix, dict(candidate.settings)), *candidate.also.items()],
            facts=facts_together(
                fixes.get(fix, FixFacts()) for fix in [candidate.fix, *candidate.also]
            ),
            candidate=candidate,
        )
        for number, candidate in enumerate(candidates)
    ]
    search = Search(
        launcher,
        Evidence(launcher, steps, low_precision),
        with_further_settings(arms),
        SearchSettings(
            allow_training_changes=allow_training_changes,
            make_patch=patch,
            switching=switching,
            ceilings=ceilings,
            growing=growing or {},
            steps=steps,
            seed=seed,
            why_in_turns=both_at_once if isinstance(both_at_once, str) else None,
        ),
    )
    search.run()
    return search.results()
