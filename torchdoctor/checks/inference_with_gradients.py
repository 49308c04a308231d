"""Inference builds graphs that nobody uses.

## What it means
With gradients enabled each call keeps its activations for a backward pass that never comes: more
time, and much more memory.

## How it is measured
The probe notes whether gradients are enabled at each call, where none is ever computed.

## Not to be confused with
Evaluation within a training (evaluation-with-gradients).
"""

from torchdoctor.queries.lookup import phase_share, training_models
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    if not recording.infers:
        return
    models = [m for m in training_models(recording) if m.forwards_with_grad]
    model = max(models, key=lambda m: m.forwards_with_grad, default=None)
    if model is None or model.forwards_with_grad < CHECK.threshold * model.forwards:
        return
    share = phase_share(recording, "forward_s")
    yield Symptom(
        evidence=fact("graphs", built=model.forwards_with_grad, calls=model.forwards),
        location=model.call.location if model.call else model.location,
        severity="moderate" if share else "advice",
    )


_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.5,
    unit="of a model's calls with gradients enabled",
    source="torchdoctor: most calls, not a few that something else differentiates",
    sentences={
        "graphs": "{built:,} of {calls:counted call} of the model built a graph for a gradient "
        "that nobody computes.",
    },
    examine=_examine,
    fires=[{**_INFERS, **process(models=[{"ident": 0, "forwards": 9, "forwards_with_grad": 9}])}],
    quiet=[
        {**_INFERS, **process(models=[{"ident": 0, "forwards": 9}])},
        process(models=[{"ident": 0, "forwards": 9, "forwards_with_grad": 9}]),
    ],
)
