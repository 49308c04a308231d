"""GPU memory is nearly full.

What it means
-------------
Near the limit the allocator must free and ask again, which synchronises the device; a little
more, and the run dies.

How it is measured
------------------
Peak of the GPU memory in use (NVML) against what the GPU has.

Not to be confused with
-----------------------
Memory that torch keeps for later: NVML counts it as used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "gpu"
THRESHOLD = 0.9
THRESHOLD_UNIT = "% of the GPU's memory"
THRESHOLD_SOURCE = "TensorBoard profiler plugin: 90 %"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.words import Finding

    total = sum(gpu.memory_bytes or 0 for gpu in recording.environment.gpus[:1])
    peak = recording.sensors.gpu_memory_peak_bytes
    if not total or peak is None or peak < THRESHOLD * total:
        return []
    return [
        Finding(
            check="memory-near-limit",
            share_of_step=None,
            evidence=[f"{peak / total:.0%} of the GPU's memory is in use."],
            location=None,
            severity="moderate",
        )
    ]


FIRES = [
    {
        "environment": {"gpus": [{"index": 0, "name": "A100", "memory_bytes": 100}]},
        "sensors": {"gpu_memory_peak_bytes": 95},
    }
]
QUIET = [
    {
        "environment": {"gpus": [{"index": 0, "name": "A100", "memory_bytes": 100}]},
        "sensors": {"gpu_memory_peak_bytes": 50},
    }
]
