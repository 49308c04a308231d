"""Convolutions have a bias right before a batch norm.

## What it means
Batch norm subtracts the mean, and with it any bias: that and its gradient are wasted work.

## How it is measured
The probe counts convolutions with a bias that a batch norm directly follows in their parent module.

## Not to be confused with
A bias before any other layer, which matters.
"""

from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    models = training_models(recording)
    model = max(models, key=lambda m: m.conv_bias_before_norm, default=None)
    if model is None or model.conv_bias_before_norm < CHECK.threshold:
        return
    yield Symptom(
        evidence=fact("biased", convolutions=model.conv_bias_before_norm),
        location=model.location,
        severity="advice",
    )


CHECK = CheckSpec(
    branch="gpu",
    threshold=1,
    unit="convolution with a bias right before a batch normalization",
    source="PyTorch Performance Tuning Guide; TorchTidy looks for the same",
    sentences={
        "biased": "{convolutions:counted convolution has, convolutions have} a bias right before "
        "a batch norm.",
    },
    examine=_examine,
    fires=[process(models=[{"ident": 0, "conv_bias_before_norm": 3, "forwards": 9}])],
    quiet=[process(models=[{"ident": 0, "conv_bias_before_norm": 0, "forwards": 9}])],
)
