"""The hardware could compute in 16 bits, but the program uses float32.

## What it means
Matrix units (tensor cores, AMX) multiply bfloat16 several times faster than float32; tensor cores
of Volta and Turing multiply float16. Autocast uses them and keeps the parameters in float32.

## How it is measured
The parameters are float32, no autocast surrounds the forward, the hardware is known to have 16-bit
matrix units, and kernels take a good part of the step, those left out that only look rows up or
scatter them (embedding, index_select); on a CPU products of matrices and convolutions alone count.

## Not to be confused with
TF32, which speeds up float32 products on NVIDIA GPUs since Ampere with less precision than
float32.
"""

from torchdoctor.queries.hardware import compute_capability, low_precision
from torchdoctor.queries.lookup import product_share, training_models
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, on_gpu, process, trace


def _examine(recording: Recording) -> Symptoms:
    share = product_share(recording)
    dtype = low_precision(recording)
    features = recording.environment.cpu_features
    capability = compute_capability(recording)
    abilities = capability if recording.has_gpu else features
    models = [m for m in training_models(recording) if m.linear + m.conv2d + m.attention > 0]
    if not models or share is None or share < CHECK.threshold:
        return
    if dtype is None or not abilities:
        return
    model = max(models, key=lambda m: m.elements)
    work = "kernels" if recording.has_gpu else "products"
    if not model.autocast_forwards and model.dtypes == ["float32"]:
        yield Symptom(
            share=share,
            evidence=fact(work, share=share, dtype=dtype),
            location=model.location,
            severity="moderate",
        )


_MODEL = {"ident": 0, "dtypes": ["float32"], "linear": 4, "forwards": 9}
_T4 = on_gpu("Tesla T4", compute_capability="7.5")
_PRODUCTS = trace(operators=[{"name": "aten::addmm", "calls_per_step": 4.0, "self_s": 0.08}])
_UPDATES = trace(operators=[{"name": "aten::addcdiv_", "calls_per_step": 4.0, "self_s": 0.08}])
_AMX = {"environment": {"cpu_features": ["amx_bf16"]}, **process(models=[_MODEL])}
CHECK = CheckSpec(
    branch="gpu",
    threshold=0.3,
    unit="% of the step in kernels, or on a CPU in products",
    source="torchdoctor; XProf marks tensor cores used for less than 10 % of the time",
    sentences={
        "kernels": "{share:.0%} of {the_step} is kernels in float32; this hardware has {dtype} "
        "units.",
        "products": "{share:.0%} of {the_step} is products and convolutions in float32; this "
        "hardware has {dtype} units.",
    },
    examine=_examine,
    fires=[
        {**_AMX, **_PRODUCTS},
        {**_T4, "shares": {"gpu": 0.8}, **process(models=[{**_MODEL, "device": "cuda:0"}])},
    ],
    quiet=[
        {**_AMX, "environment": {"cpu_features": ["avx2"]}, **_PRODUCTS},
        {**_AMX, **_UPDATES},
    ],
)
