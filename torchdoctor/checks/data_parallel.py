"""nn.DataParallel is in use.

What it means
-------------
DataParallel copies the model to every GPU in every step and runs them from one Python process;
DistributedDataParallel does neither.

How it is measured
------------------
A module of that class among the root modules.

Not to be confused with
-----------------------
DistributedDataParallel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "communication"
THRESHOLD = 0
THRESHOLD_UNIT = "models in DataParallel: any is a finding"
THRESHOLD_SOURCE = "PyTorch documentation (DataParallel): use DistributedDataParallel instead"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.words import Finding

    found = [model for model in recording.main.models if model.data_parallel == "DataParallel"]
    if not found:
        return []
    return [
        Finding(
            check="data-parallel",
            share_of_step=None,
            evidence=[
                "The model is wrapped in torch.nn.DataParallel: one process drives all GPUs."
            ],
            location=found[0].location,
            severity="high",
        )
    ]


FIRES = [{"processes": [{"pid": 1, "models": [{"ident": 0, "data_parallel": "DataParallel"}]}]}]
QUIET = [
    {
        "processes": [
            {"pid": 1, "models": [{"ident": 0, "data_parallel": "DistributedDataParallel"}]}
        ]
    }
]
