"""Large layers have sizes that are no multiple of 8.

What it means
-------------
A GPU's tensor cores work on tiles. A layer of 50257 or 1001 columns is padded inside the kernel, or
handed to a slower one; the next multiple of 8 (64 on an A100 and later) computes more and takes
less time.

How it is measured
------------------
`in_features` and `out_features` of linear layers with both sides of 64 and more, on a GPU with
tensor cores in use: bfloat16, float16 or TF32.

Not to be confused with
-----------------------
The number of classes of a small head: its product takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.records import Finding, Recording

UNDER = "gpu"
THRESHOLD = 8
THRESHOLD_SOURCE = "NVIDIA, Matrix Multiplication Background: multiples of 16 bytes (8 halves)"


def look(recording: Recording) -> list[Finding]:
    """A finding where a large layer has an odd size."""
    from torchdoctor.records import Finding
    from torchdoctor.records.lookup import compute_capability, training_models

    if not recording.has_gpu or (compute_capability(recording) or (0, 0)) < (7, 0):
        return []
    models = [model for model in training_models(recording) if model.odd_sizes]
    low = any(m.autocast_forwards or set(m.dtypes) & {"bfloat16", "float16"} for m in models)
    if not models or not (low or recording.main.flags.matmul_tf32):
        return []
    layers = [layer for model in models for layer in model.odd_sizes]
    return [
        Finding(
            check="odd-sizes",
            share_of_step=None,
            evidence=[f"No multiples of 8: {'; '.join(layers[:4])}."],
            location=models[0].location,
            severity="advice",
        )
    ]


_GPU = {"index": 0, "name": "A100", "compute_capability": "8.0"}
_MODEL = {
    "ident": 0,
    "forwards": 60,
    "device": "cuda:0",
    "dtypes": ["bfloat16"],
    "odd_sizes": ["head: Linear 768 -> 50257"],
}
FIRES = [{"environment": {"gpus": [_GPU]}, "processes": [{"pid": 1, "models": [_MODEL]}]}]
QUIET = [
    {"processes": [{"pid": 1, "models": [{**_MODEL, "device": "cpu"}]}]},
    {
        "environment": {"gpus": [_GPU]},
        "processes": [{"pid": 1, "models": [{**_MODEL, "odd_sizes": []}]}],
    },
]
