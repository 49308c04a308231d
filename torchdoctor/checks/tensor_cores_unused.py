"""The GPU has tensor cores, and the matrix kernels of the trace do not run on them.

## What it means
Matrix products, convolutions and attention in plain float32 arithmetic leave the GPU's fastest
units idle. In 16 bits (float16 from compute capability 7.0 on, bfloat16 from 8.0 on), or in TF32
(from 8.0 on), they run several times faster.

## How it is measured
The names of the kernels tell the share of the step in matrix work without tensor cores. The check
reads traces alone; of a program that runs, the model's data types are known
(low-precision-unused).

## Not to be confused with
Double precision, which 16 bits cannot replace; it is left out.
"""

from torchdoctor.queries.hardware import compute_capability
from torchdoctor.queries.lookup import training_models
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, on_gpu, process, trace

_MUCH = 0.4
_WITHOUT = "GTX 16"  # Turing without tensor cores


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    capability = compute_capability(recording)
    if traced is None or not traced.step_s or not traced.float32_matrix_s:
        return
    share = traced.float32_matrix_s / traced.step_s
    gpus = recording.environment.used_gpus
    if share < CHECK.threshold or capability is None or capability < (7, 0):
        return
    if training_models(recording) or any(_WITHOUT in gpu.name for gpu in gpus):
        return
    units = ["float16"] if capability < (8, 0) else ["bfloat16", "float16", "TF32"]
    yield Symptom(
        share=share,
        evidence=fact("float32", share=share, gpu=gpus[0].name, units=units),
        severity="high" if share >= _MUCH else "moderate",
    )


_V100 = on_gpu("Tesla V100-SXM2-16GB", compute_capability="7.0")
_MODEL = {"ident": 0, "dtypes": ["float32"], "linear": 4, "forwards": 9}
_KERNELS = trace(has_device=True, float32_matrix_s=0.06)
CHECK = CheckSpec(
    branch="gpu",
    threshold=0.3,
    unit="% of the step in matrix kernels",
    source="torchdoctor; XProf marks tensor cores used for less than 10 % of the time",
    sentences={
        "float32": "{share:.0%} of {each_step} is matrix kernels in float32 that use no tensor "
        "cores; those of the {gpu} multiply {units:list}.",
    },
    examine=_examine,
    fires=[{**_V100, **_KERNELS}],
    quiet=[
        {**on_gpu("Tesla P100", compute_capability="6.0"), **_KERNELS},
        {**on_gpu("NVIDIA GeForce GTX 1660", compute_capability="7.5"), **_KERNELS},
        {**_V100, **_KERNELS, **process(models=[_MODEL])},
        _KERNELS,
    ],
)
