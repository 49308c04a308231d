"""Convolutions have a bias right before a batch norm.

What it means
-------------
Batch norm subtracts the mean, and with it any bias: adding it, and computing its gradient, is
work for nothing.

How it is measured
------------------
Conv modules with a bias that are directly followed by a batch norm in their parent.

Not to be confused with
-----------------------
A bias before any other layer, which matters.
"""

from collections.abc import Iterator

from torchdoctor.facts.counts import counted
from torchdoctor.facts.lookup import training_models
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 1


def _examine(recording: Recording) -> Iterator[Symptom]:
    models = [m for m in training_models(recording) if m.conv_bias_before_norm >= THRESHOLD]
    if not models:
        return
    model = max(models, key=lambda m: m.conv_bias_before_norm)
    biased = counted(model.conv_bias_before_norm, "convolution has", "convolutions have")
    yield Symptom(
        evidence=[f"{biased} a bias right before a batch norm."],
        location=model.location,
        severity="advice",
    )


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="gpu",
    threshold=THRESHOLD,
    unit="convolution with a bias right before a batch normalization",
    source="PyTorch Performance Tuning Guide; TorchTidy looks for the same",
    examine=_examine,
    fires=[
        {
            "processes": [
                {"pid": 1, "models": [{"ident": 0, "conv_bias_before_norm": 3, "forwards": 9}]}
            ]
        }
    ],
    quiet=[
        {
            "processes": [
                {"pid": 1, "models": [{"ident": 0, "conv_bias_before_norm": 0, "forwards": 9}]}
            ]
        }
    ],
)
