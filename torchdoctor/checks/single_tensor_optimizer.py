"""The optimizer updates parameters one by one.

## What it means
Without `foreach` or `fused`, Python runs several small operators for each parameter tensor.

## How it is measured
The probe reads the optimizer's arguments, its number of tensors, and its share of the step.

## Not to be confused with
A large optimizer share of few large tensors: that is memory bandwidth.
"""

from torchdoctor.queries.lookup import phase_share, updates_one_by_one
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process

_FEWEST = 10  # tensors


def _examine(recording: Recording) -> Symptoms:
    share = phase_share(recording, "optimizer_s")
    many = [
        optimizer
        for optimizer in recording.main.optimizers
        if optimizer.parameters >= _FEWEST and optimizer.supports_fused
    ]
    optimizer = next(filter(updates_one_by_one, many), None)
    if share is None or share < CHECK.threshold or optimizer is None:
        return
    name = optimizer.cls.rpartition(".")[2]
    yield Symptom(
        share=share,
        evidence=fact("one-by-one", share=share, name=name, tensors=optimizer.parameters),
        location=optimizer.location,
    )


_STEPS = {"optimizer_s": 0.004}
_ADAMW = {"ident": 0, "cls": "torch.optim.adamw.AdamW", "parameters": 200, "supports_fused": True}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.05,
    unit="% of the step in the optimizer",
    source="torchdoctor: from 5 % on it is worth a trial; TorchTidy looks for the same",
    phases=("optimizer_s",),
    sentences={
        "one-by-one": "{name} updates {tensors} tensors one by one and takes {share:.0%} of "
        "{each_step}.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(optimizers=[{**_ADAMW, "foreach": False}])}],
    quiet=[{"steps": _STEPS, **process(optimizers=[{**_ADAMW, "fused": True}])}],
)
