"""Costs that are worth taking away, as arms of a launch that switches."""

from __future__ import annotations

from torchdoctor.advice import catalogue
from torchdoctor.trials.arm_specs import CEILING
from torchdoctor.trials.ceilings import CeilingTrial
from torchdoctor.words import Recording


def ceiling_trials(recording: Recording, bottleneck: str) -> list[CeilingTrial]:
    """Return costs of which it is worth asking what they could give at most.

    Args:
        recording: the observed program.
        bottleneck: the branch that the diagnosis names: its cost comes first.
    """
    trials = []
    for ident, ceiling in catalogue.ceilings().items():
        values = ceiling.settings(recording)
        if values is None:
            continue
        trial = CeilingTrial(
            ceiling=ident,
            branch=ceiling.branch_in(recording),
            fixes=[(CEILING + ident, values)],
            removes=ceiling.removes,
            share=ceiling.share(recording),
            whole=ceiling.takes_all(recording),
        )
        trials.append(trial)
    return sorted(trials, key=lambda trial: (trial.branch != bottleneck, -(trial.share or 0.0)))
