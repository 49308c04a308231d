"""What one iteration of a program is, and what the measured ones do not show, as sentences."""

from torchdoctor.reports import templates
from torchdoctor.schema import Evidence, Report, UnobservedPhase
from torchdoctor.schema.figures import COMPUTED, counted, seconds, tally

SENTENCES = {  # by what separates two iterations, as `Boundary.kind`
    "loader": "one iteration is one batch of the DataLoader",
    "optimizer": "there is no DataLoader, so one iteration is one step of {name}",
    "optimizer-beside-loaders": "no DataLoader feeds each step, so one iteration is one step of "
    "{name}",
    "forward": "no DataLoader feeds the model, so one iteration is one call of {name}",
    "entry": "one iteration is one call of {name}",
    "backward": "one iteration is one {computed}",
    "explicit": "one iteration is one call of torchdoctor.step()",
}
_WHOLE = (
    "[as asked for with --step-on {asked_for}: ]{iteration}[ at {location:place}]{learned} "
    "({counts})[, in each of {processes} {training}processes]."
)
_LEARNED = {  # by `Boundary.learned_by`, where that is worth a word
    "forward": ", and no gradient is computed",
    "batch": ", though no backward pass and no optimizer step was seen",
}
_UNNAMED = {"optimizer": "the optimizer", "optimizer-beside-loaders": "the optimizer"}


def how_found(evidence: Evidence, cwd: str) -> str:
    """Return how steps were found in one sentence, which begins with a small letter."""
    values = evidence.values
    learned_by = values["learned_by"]
    name = values["name"] or _UNNAMED.get(evidence.fact, "the model")
    words = {"name": name, "computed": COMPUTED[learned_by][0]}
    return templates.filled(
        _WHOLE,
        {
            **values,
            "location": evidence.location,
            "iteration": templates.filled(SENTENCES[evidence.fact], words, SENTENCES),
            "learned": _LEARNED.get(learned_by, ""),
            "counts": tally(values["counts"], learned_by),
            "training": "" if learned_by == "forward" else "training ",
        },
        SENTENCES,
        cwd,
    )


def unobserved(report: Report) -> list[str]:
    """Return a sentence for each phase that came beside the measured steps alone."""
    steps = report.steps
    if steps is None:
        return []
    return [_of_phase(phase, steps.mean_s) for phase in steps.unobserved]


def _of_phase(phase: UnobservedPhase, step_s: float) -> str:
    name = "A rollout" if phase.kind == "rollout" else "An evaluation"
    passes = counted(phase.calls, "forward pass", "forward passes")
    opening = f"{name} of {seconds(phase.seconds)} ({passes}) is in no measured step"
    if phase.steps_between is None:
        return f"{opening}: no share or speed-up holds for it."
    share = phase.seconds / (phase.seconds + phase.steps_between * step_s)
    every = counted(phase.steps_between, "step")
    return f"{opening}: one every {every} takes {share:.0%} of the time, which no share tells of."
