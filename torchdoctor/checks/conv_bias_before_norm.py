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

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "gpu"
THRESHOLD = 1
THRESHOLD_UNIT = "convolution with a bias right before a batch normalization"
THRESHOLD_SOURCE = "PyTorch Performance Tuning Guide; TorchTidy looks for the same"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.facts.counts import counted
    from torchdoctor.facts.lookup import training_models
    from torchdoctor.words import Finding

    models = [m for m in training_models(recording) if m.conv_bias_before_norm >= THRESHOLD]
    if not models:
        return []
    model = max(models, key=lambda m: m.conv_bias_before_norm)
    biased = counted(model.conv_bias_before_norm, "convolution has", "convolutions have")
    return [
        Finding(
            check="conv-bias-before-norm",
            share_of_step=None,
            evidence=[f"{biased} a bias right before a batch norm."],
            location=model.location,
            severity="advice",
        )
    ]


FIRES = [
    {"processes": [{"pid": 1, "models": [{"ident": 0, "conv_bias_before_norm": 3, "forwards": 9}]}]}
]
QUIET = [
    {"processes": [{"pid": 1, "models": [{"ident": 0, "conv_bias_before_norm": 0, "forwards": 9}]}]}
]
