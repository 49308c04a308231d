"""cudnn.benchmark is off with convolutions of fixed size.

What it means
-------------
With cudnn.benchmark the fastest convolution algorithm is found by trying, once for each input
size. With sizes that never change that is paid once.

How it is measured
------------------
The switch after the measured steps, Conv2d modules, and at most two distinct input shapes.

Not to be confused with
-----------------------
Inputs whose size varies: there each new size would be tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "gpu"
THRESHOLD = 2
THRESHOLD_UNIT = "input shapes; with more of them it is no finding"
THRESHOLD_SOURCE = "PyTorch Performance Tuning Guide"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.facts.lookup import training_models
    from torchdoctor.words import Finding

    models = [m for m in training_models(recording) if m.conv2d > 0 and m.device.startswith("cuda")]
    if not models or recording.main.flags.cudnn_benchmark is not False:
        return []
    if any(len(m.input_shapes) > THRESHOLD for m in models):
        return []
    return [
        Finding(
            check="cudnn-benchmark-off",
            share_of_step=None,
            evidence=["Convolutions of fixed size run with cudnn.benchmark off."],
            location=None,
            severity="advice",
        )
    ]


FIRES = [
    {
        "processes": [
            {
                "pid": 1,
                "flags": {"cudnn_benchmark": False},
                "models": [{"ident": 0, "conv2d": 8, "forwards": 9, "device": "cuda:0"}],
            }
        ]
    }
]
QUIET = [
    {
        "processes": [
            {
                "pid": 1,
                "flags": {"cudnn_benchmark": False},
                "models": [{"ident": 0, "conv2d": 8, "forwards": 9}],
            }
        ]
    }
]
