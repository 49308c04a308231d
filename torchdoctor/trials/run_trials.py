"""The search of one run: candidates in, rows of the report and a recommendation out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from torchdoctor.trials.arms import Arm, FixFacts
from torchdoctor.trials.evidence import Evidence
from torchdoctor.trials.launches import Launch, Launcher, SideBySide
from torchdoctor.trials.outcome import TrialResults
from torchdoctor.trials.priors import facts_together, with_further_settings
from torchdoctor.trials.schedule import Budget
from torchdoctor.trials.search import Search, SearchSettings
from torchdoctor.words import Candidate, ProgressEvent


def run_trials(
    launch: Launch,
    candidates: Sequence[Candidate],
    fixes: Mapping[str, FixFacts],
    *,
    budget: Budget,
    settings: SearchSettings,
    progress: Callable[[ProgressEvent], None] | None = None,
) -> TrialResults:
    """Try the candidates against the untouched program.

    Args:
        launch: starts the program once; `[]` is the untouched program.
        candidates: most promising first.
        fixes: what to know of each fix, by id.
        budget: wall time for all launches.
        settings: of the search.
        progress: told before and after each launch.
    """
    launcher = Launcher(
        launch,
        budget,
        progress=progress,
        order=random.Random(settings.seed),
        expected_launch_s=settings.expected_launch_s,
        side_by_side=SideBySide.of(settings.both_at_once),
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
    evidence = Evidence(launcher, settings.steps, settings.low_precision)
    search = Search(launcher, evidence, with_further_settings(arms), settings)
    search.run()
    return search.results()
