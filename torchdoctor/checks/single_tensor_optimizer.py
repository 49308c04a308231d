"""The optimizer updates parameters one by one.

What it means
-------------
Without `foreach` or `fused` the optimizer runs several small operators for each parameter
tensor, in Python.

How it is measured
------------------
The optimizer's arguments and its share of the step (step log), with the number of parameter
tensors.

Not to be confused with
-----------------------
A large optimizer share of few large tensors: that is memory bandwidth.
"""

from collections.abc import Iterator

from torchdoctor.facts.lookup import updates_one_by_one
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.05


def _examine(recording: Recording) -> Iterator[Symptom]:
    steps = recording.steps
    if steps is None or steps.mean_s <= 0:
        return
    share = steps.optimizer_s / steps.mean_s
    for optimizer in recording.main.optimizers:
        few = optimizer.parameters < 10 or not optimizer.supports_fused
        if share < THRESHOLD or few or not updates_one_by_one(optimizer):
            continue
        name = optimizer.cls.rpartition(".")[2]
        yield Symptom(
            share=share,
            evidence=[
                f"{name} updates {optimizer.parameters} tensors one by one and takes "
                f"{share:.0%} of each step."
            ],
            location=optimizer.location,
        )
        return


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="% of the step in the optimizer",
    source="torchdoctor: from 5 % on it is worth a trial; TorchTidy looks for the same",
    phases=("optimizer_s",),
    examine=_examine,
    fires=[
        {
            "steps": {"optimizer_s": 0.004},
            "processes": [
                {
                    "pid": 1,
                    "optimizers": [
                        {
                            "ident": 0,
                            "cls": "torch.optim.adamw.AdamW",
                            "parameters": 200,
                            "foreach": False,
                            "supports_fused": True,
                        }
                    ],
                }
            ],
        }
    ],
    quiet=[
        {
            "steps": {"optimizer_s": 0.004},
            "processes": [
                {
                    "pid": 1,
                    "optimizers": [
                        {
                            "ident": 0,
                            "cls": "torch.optim.adamw.AdamW",
                            "parameters": 200,
                            "fused": True,
                            "supports_fused": True,
                        }
                    ],
                }
            ],
        }
    ],
)
