"""TF32 is off on a GPU that has it.

## What it means
GPUs since Ampere multiply float32 matrices in TF32 several times faster, if that is allowed.

## How it is measured
The probe reads torch.backends.cuda.matmul.allow_tf32 after the measured steps.

## Not to be confused with
bfloat16 autocast, which is faster still and makes TF32 unnecessary where it applies.
"""

from torchdoctor.queries.hardware import compute_capability
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, on_gpu, process

_AMPERE = (8, 0)


def _examine(recording: Recording) -> Symptoms:
    capability = compute_capability(recording)
    main = recording.main
    if not recording.has_gpu or capability is None or capability < _AMPERE:
        return
    if main.flags.matmul_tf32 is False and not any(m.autocast_forwards for m in main.models):
        yield Symptom(evidence=fact("off"), severity="advice")


_OFF = {"matmul_tf32": False}
_GPUS = on_gpu("A100", compute_capability="8.0")
CHECK = CheckSpec(
    branch="gpu",
    threshold=8.0,
    unit="or later: the GPU's CUDA compute capability",
    source="NVIDIA Ampere architecture: compute capability 8.0",
    sentences={
        "off": "float32 matrix products may not use TF32 (allow_tf32 is False).",
    },
    examine=_examine,
    fires=[{**_GPUS, **process(flags=_OFF, models=[{"ident": 0, "device": "cuda:0"}])}],
    quiet=[process(flags=_OFF)],
)
