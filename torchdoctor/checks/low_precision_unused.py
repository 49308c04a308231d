"""The hardware could compute in 16 bits, but the program uses float32.

What it means
-------------
Matrix units (tensor cores, AMX) multiply bfloat16 several times faster than float32; tensor cores
of Volta and Turing multiply float16. Autocast uses them and keeps the parameters in float32.

How it is measured
------------------
float32 parameters, no autocast around the forward, hardware that is known to have 16-bit matrix
units, and large operators that take a good part of the step. Operators that only look rows up or
scatter them (embedding, index_select) do not count: those units do nothing for them.

Not to be confused with
-----------------------
TF32, which speeds up float32 products on NVIDIA GPUs since Ampere with less precision than
float32.
"""

from collections.abc import Iterator

from torchdoctor.facts.hardware import compute_capability, low_precision
from torchdoctor.facts.lookup import arithmetic_share, training_models
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.3


def _examine(recording: Recording) -> Iterator[Symptom]:
    share = arithmetic_share(recording)
    models = [m for m in training_models(recording) if m.linear + m.conv2d + m.attention > 0]
    if not models or share is None or share < THRESHOLD or not _known(recording):
        return
    dtype = low_precision(recording)
    if dtype is None:
        return
    model = max(models, key=lambda m: m.elements)
    if model.autocast_forwards or model.dtypes != ["float32"]:
        return
    yield Symptom(
        share=share,
        evidence=[
            f"{share:.0%} of the step is large operators in float32; this hardware has "
            f"{dtype} units."
        ],
        location=model.location,
        severity="moderate",
    )


def _known(recording: Recording) -> bool:
    if recording.has_gpu:
        return compute_capability(recording) is not None
    return bool(recording.environment.cpu_features)


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="gpu",
    threshold=THRESHOLD,
    unit="% of the step in large operators",
    source="torchdoctor; XProf marks tensor cores used for less than 10 % of the time",
    examine=_examine,
    fires=[
        {
            "environment": {"cpu_features": ["amx_bf16"]},
            "trace": {"path": "t", "steps": 4, "step_s": 0.1, "compute_s": 0.08},
            "processes": [
                {
                    "pid": 1,
                    "models": [{"ident": 0, "dtypes": ["float32"], "linear": 4, "forwards": 9}],
                }
            ],
        },
        {
            "environment": {
                "gpus": [{"index": 0, "name": "Tesla T4", "compute_capability": "7.5"}]
            },
            "shares": {"gpu": 0.8},
            "processes": [
                {
                    "pid": 1,
                    "models": [
                        {
                            "ident": 0,
                            "device": "cuda:0",
                            "dtypes": ["float32"],
                            "linear": 4,
                            "forwards": 9,
                        }
                    ],
                }
            ],
        },
    ],
    quiet=[
        {
            "environment": {"cpu_features": ["avx2"]},
            "trace": {"path": "t", "steps": 4, "step_s": 0.1, "compute_s": 0.08},
            "processes": [
                {
                    "pid": 1,
                    "models": [{"ident": 0, "dtypes": ["float32"], "linear": 4, "forwards": 9}],
                }
            ],
        },
        {
            "environment": {"cpu_features": ["amx_bf16"]},
            "trace": {"path": "t", "steps": 4, "step_s": 0.1, "compute_s": 0.08, "gather_s": 0.06},
            "processes": [
                {
                    "pid": 1,
                    "models": [{"ident": 0, "dtypes": ["float32"], "linear": 4, "forwards": 9}],
                }
            ],
        },
    ],
)
