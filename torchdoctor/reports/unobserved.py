"""What the measured steps do not show of a training, as sentences for every kind of report."""

from torchdoctor.schema import Report, UnobservedPhase
from torchdoctor.schema.figures import counted, seconds


def sentences(report: Report) -> list[str]:
    """Return a sentence for each phase that came beside the measured steps alone."""
    steps = report.steps
    if steps is None:
        return []
    return [_sentence(phase, steps.mean_s) for phase in steps.unobserved]


def _sentence(phase: UnobservedPhase, step_s: float) -> str:
    name = "A rollout" if phase.kind == "rollout" else "An evaluation"
    passes = counted(phase.calls, "forward pass", "forward passes")
    opening = f"{name} of {seconds(phase.seconds)} ({passes}) is in no measured step"
    if phase.steps_between is None:
        return f"{opening}: no share or speed-up holds for it."
    share = phase.seconds / (phase.seconds + phase.steps_between * step_s)
    every = counted(phase.steps_between, "step")
    return f"{opening}: one every {every} takes {share:.0%} of the time, which no share tells of."
