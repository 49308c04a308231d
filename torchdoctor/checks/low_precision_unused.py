"""The hardware could compute in 16 bits, but the program uses float32.

## What it means
Matrix units (tensor cores, AMX) multiply bfloat16 several times faster than float32; tensor cores
of Volta and Turing multiply float16. Autocast uses them and keeps the parameters in float32.

## How it is measured
The parameters are float32, no autocast surrounds the forward, the hardware is known to have 16-bit
matrix units, and large operators take a good part of the step. Operators that only look rows up or
scatter them (embedding, index_select) do not count.

## Not to be confused with
TF32, which speeds up float32 products on NVIDIA GPUs since Ampere with less precision than
float32.
"""

from torchdoctor.facts.hardware import compute_capability, low_precision
from torchdoctor.facts.lookup import arithmetic_share, training_models
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, on_gpu, process, trace


def _examine(recording: Recording) -> Symptoms:
    share, dtype = arithmetic_share(recording), low_precision(recording)
    features, capability = recording.environment.cpu_features, compute_capability(recording)
    known = capability if recording.has_gpu else features
    models = [m for m in training_models(recording) if m.linear + m.conv2d + m.attention > 0]
    if not models or share is None or share < CHECK.threshold:
        return
    if dtype is None or not known:
        return
    model = max(models, key=lambda m: m.elements)
    if not model.autocast_forwards and model.dtypes == ["float32"]:
        yield Symptom(
            share=share,
            evidence=f"{share:.0%} of the step is large operators in float32; this hardware has "
            f"{dtype} units.",
            location=model.location,
            severity="moderate",
        )


_MODEL = {"ident": 0, "dtypes": ["float32"], "linear": 4, "forwards": 9}
_T4 = on_gpu("Tesla T4", compute_capability="7.5")
_AMX = {"environment": {"cpu_features": ["amx_bf16"]}, **process(models=[_MODEL])}
CHECK = CheckSpec(
    branch="gpu",
    threshold=0.3,
    unit="% of the step in large operators",
    source="torchdoctor; XProf marks tensor cores used for less than 10 % of the time",
    examine=_examine,
    fires=[
        {**_AMX, **trace(compute_s=0.08)},
        {**_T4, "shares": {"gpu": 0.8}, **process(models=[{**_MODEL, "device": "cuda:0"}])},
    ],
    quiet=[
        {**_AMX, "environment": {"cpu_features": ["avx2"]}, **trace(compute_s=0.08)},
        {**_AMX, **trace(compute_s=0.08, gather_s=0.06)},
    ],
)
