"""Convolutions run in NCHW memory layout.

## What it means
Convolution kernels of cuDNN (with tensor cores) and oneDNN are faster when channels lie next to
each other in memory (channels_last).

## How it is measured
The probe counts Conv2d modules whose weights are not channels_last. The trace gives the share of
convolutions among the operators. Transposed convolutions (ConvTranspose2d) count in neither.

## Not to be confused with
1x1 kernels on 1x1 images, where it makes no difference.
"""

from torchdoctor.queries.lookup import convolution_share, training_models
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process, trace


def _examine(recording: Recording) -> Symptoms:
    models = [m for m in training_models(recording) if m.conv2d > 0 and not m.conv_channels_last]
    share = convolution_share(recording)
    if not models or (share is not None and share < CHECK.threshold):
        return
    model = max(models, key=lambda m: m.conv2d)
    yield Symptom(
        share=share,
        evidence=fact("layout", share=share, convolutions=model.conv2d),
        location=model.location,
        severity="high" if share is not None and share >= 0.4 else "advice",
    )


_PLAIN = {"name": "aten::mkldnn_convolution", "calls_per_step": 8.0, "self_s": 0.07}
_TRANSPOSED = {**_PLAIN, "name": "aten::_convolution"}
_MODEL = {"ident": 0, "conv2d": 8, "forwards": 9}
CHECK = CheckSpec(
    branch="gpu",
    threshold=0.2,
    unit="% of the step",
    source="torchdoctor; PyTorch's channels-last tutorial reports gains of 8 to 35 %",
    sentences={
        "layout": "{convolutions:counted convolution} in NCHW layout[, which take {share:.0%} of "
        "{the_step}].",
    },
    examine=_examine,
    fires=[{**trace(operators=[_PLAIN]), **process(models=[_MODEL])}],
    quiet=[
        {**trace(operators=[{**_PLAIN, "self_s": 0.005}, _TRANSPOSED]), **process(models=[_MODEL])},
        process(models=[{**_MODEL, "conv_channels_last": True}]),
    ],
)
