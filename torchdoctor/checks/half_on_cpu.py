"""A model computes in float16 on a CPU.

## What it means
Most CPUs have no fast instructions for float16: many operations convert to float32 and back, and
matrix products are several times slower.

## What to do
Leave out `.half()` and `torch_dtype=torch.float16` on a CPU, or use bfloat16 where the CPU has
instructions for it (amx_bf16, avx512_bf16).

## How it is measured
The probe reads the device and the data types of each model's parameters.

## Not to be confused with
float16 on a GPU, which has units for it.
"""

from torchdoctor.facts.lookup import training_models
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    for model in training_models(recording):
        if model.device != "cpu" or "float16" not in model.dtypes:
            continue
        yield Symptom(
            evidence=fact("float16"),
            location=model.call.location if model.call else model.location,
            severity="high",
        )


_MODEL = {"ident": 0, "forwards": 9, "device": "cpu"}
CHECK = CheckSpec(
    branch="cpu",
    threshold=1,
    unit="model in float16 on a CPU",
    source="torchdoctor: a single model suffices",
    sentences={"float16": "The model's parameters are in float16, on a CPU."},
    examine=_examine,
    closes_verdict=True,
    fires=[process(models=[{**_MODEL, "dtypes": ["float16"]}])],
    quiet=[
        process(models=[{**_MODEL, "dtypes": ["float32"]}]),
        process(models=[{**_MODEL, "dtypes": ["float16"], "device": "cuda:0"}]),
    ],
)
