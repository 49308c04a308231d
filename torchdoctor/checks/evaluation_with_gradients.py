"""Validation builds a graph that nobody uses.

## What it means
A forward in eval mode with gradients enabled keeps every activation for a backward that never
comes: more time, and much more memory.

## How it is measured
The probe counts forwards in eval mode while gradients are enabled, and times the evaluation.

## Not to be confused with
Training a frozen part in eval mode, where a backward follows.
"""

from torchdoctor.queries.lookup import phase_share
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    share = phase_share(recording, "evaluation_s")
    models = [m for m in recording.main.models if m.eval_forwards_with_grad > 0]
    if share is None or share < CHECK.threshold or not models:
        return
    model = max(models, key=lambda m: m.eval_forwards_with_grad)
    yield Symptom(
        share=share,
        evidence=fact("graphs", share=share, forwards=model.eval_forwards_with_grad),
        location=model.eval_with_grad_location,
    )


_STEPS = {"evaluation_s": 0.004}
_MODEL = {"ident": 0, "eval_forwards": 20}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the training time in such evaluation",
    source="torchdoctor: the tree's bound for a moderate share",
    sentences={
        "graphs": "{forwards} forwards in eval mode built a graph; evaluation takes {share:.0%} "
        "of the training time.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(models=[{**_MODEL, "eval_forwards_with_grad": 20}])}],
    quiet=[{"steps": _STEPS, **process(models=[_MODEL])}],
)
