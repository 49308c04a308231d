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

from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.9


def _examine(recording: Recording) -> Iterator[Symptom]:
    total = sum(gpu.memory_bytes or 0 for gpu in recording.environment.gpus[:1])
    peak = recording.sensors.gpu_memory_peak_bytes
    if not total or peak is None or peak < THRESHOLD * total:
        return
    yield Symptom(
        evidence=[f"{peak / total:.0%} of the GPU's memory is in use."],
        severity="moderate",
    )


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="gpu",
    threshold=THRESHOLD,
    unit="% of the GPU's memory",
    source="TensorBoard profiler plugin: 90 %",
    examine=_examine,
    fires=[
        {
            "environment": {"gpus": [{"index": 0, "name": "A100", "memory_bytes": 100}]},
            "sensors": {"gpu_memory_peak_bytes": 95},
        }
    ],
    quiet=[
        {
            "environment": {"gpus": [{"index": 0, "name": "A100", "memory_bytes": 100}]},
            "sensors": {"gpu_memory_peak_bytes": 50},
        }
    ],
)
