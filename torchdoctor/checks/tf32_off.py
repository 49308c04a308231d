"""TF32 is off on a GPU that has it.

What it means
-------------
GPUs since Ampere multiply float32 matrices on tensor cores in TF32, several times faster, when
the program allows it.

How it is measured
------------------
torch.backends.cuda.matmul.allow_tf32 after the measured steps, on a GPU of compute capability
8.0 or more.

Not to be confused with
-----------------------
bfloat16 autocast, which is faster still and makes TF32 unnecessary where it applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "gpu"
THRESHOLD = 8.0
THRESHOLD_UNIT = "or later: the GPU's CUDA compute capability"
THRESHOLD_SOURCE = "NVIDIA Ampere architecture: compute capability 8.0"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.facts.hardware import compute_capability
    from torchdoctor.words import Finding

    capability, flags = compute_capability(recording), recording.main.flags
    if (
        not recording.has_gpu
        or capability is None
        or capability < (8, 0)
        or flags.matmul_tf32 is not False
    ):
        return []
    if any(m.autocast_forwards for m in recording.main.models):
        return []
    return [
        Finding(
            check="tf32-off",
            share_of_step=None,
            evidence=["float32 matrix products may not use TF32 (allow_tf32 is False)."],
            location=None,
            severity="advice",
        )
    ]


FIRES = [
    {
        "environment": {"gpus": [{"index": 0, "name": "A100", "compute_capability": "8.0"}]},
        "processes": [
            {
                "pid": 1,
                "flags": {"matmul_tf32": False},
                "models": [{"ident": 0, "device": "cuda:0"}],
            }
        ],
    }
]
QUIET = [{"processes": [{"pid": 1, "flags": {"matmul_tf32": False}}]}]
