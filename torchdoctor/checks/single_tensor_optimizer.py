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

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
THRESHOLD = 0.05
THRESHOLD_UNIT = "% of the step in the optimizer"
THRESHOLD_SOURCE = "torchdoctor: from 5 % on it is worth a trial; TorchTidy looks for the same"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.facts.lookup import updates_one_by_one
    from torchdoctor.words import Finding

    steps = recording.steps
    if steps is None or steps.mean_s <= 0:
        return []
    share = steps.optimizer_s / steps.mean_s
    for optimizer in recording.main.optimizers:
        few = optimizer.parameters < 10 or not optimizer.supports_fused
        if share < THRESHOLD or few or not updates_one_by_one(optimizer):
            continue
        name = optimizer.cls.rpartition(".")[2]
        return [
            Finding(
                check="single-tensor-optimizer",
                share_of_step=share,
                evidence=[
                    f"{name} updates {optimizer.parameters} tensors one by one and takes "
                    f"{share:.0%} of each step."
                ],
                location=optimizer.location,
                severity="high" if share >= 0.2 else "moderate",
            )
        ]
    return []


FIRES = [
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
]
QUIET = [
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
]
