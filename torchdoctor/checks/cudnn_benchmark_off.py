"""cudnn.benchmark is off with convolutions of fixed size.

## What it means
With cudnn.benchmark the fastest convolution algorithm is found by trying, once for each size.

## How it is measured
The switch is off after the measured steps, and Conv2d modules got at most two input shapes.

## Not to be confused with
Inputs whose size varies: there each new size would be tried again.
"""

from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    models = [m for m in training_models(recording) if m.conv2d > 0 and m.device.startswith("cuda")]
    if not models or recording.main.flags.cudnn_benchmark is not False:
        return
    if all(len(m.input_tensors) <= CHECK.threshold for m in models):
        yield Symptom(evidence=fact("off"), severity="advice")


_MODEL = {"ident": 0, "conv2d": 8, "forwards": 9}
CHECK = CheckSpec(
    branch="gpu",
    threshold=2,
    unit="input shapes; with more of them it is no finding",
    source="PyTorch Performance Tuning Guide",
    sentences={
        "off": "Convolutions of fixed size run with cudnn.benchmark off.",
    },
    examine=_examine,
    fires=[process(flags={"cudnn_benchmark": False}, models=[{**_MODEL, "device": "cuda:0"}])],
    quiet=[process(flags={"cudnn_benchmark": False}, models=[_MODEL])],
)
