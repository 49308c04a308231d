"""The batch is too small for the GPU.

What it means
-------------
Kernels that are over in a few microseconds leave the GPU waiting for the next launch: a larger
batch costs little more time.

How it is measured
------------------
Most kernels of the trace take less than 10 microseconds, the GPU is busy less than half of the
step, and much of its memory is free.

Not to be confused with
-----------------------
A host that is slow for other reasons, such as Python work between the operators.
"""

from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.5


def _examine(recording: Recording) -> Iterator[Symptom]:
    trace, sensors = recording.trace, recording.sensors
    if trace is None or not trace.has_device or trace.short_kernels_share is None:
        return
    if trace.short_kernels_share < THRESHOLD or (trace.gpu_busy_share or 0.0) > 0.5:
        return
    total = sum(gpu.memory_bytes or 0 for gpu in recording.environment.gpus[:1])
    if (
        not total
        or sensors.gpu_memory_peak_bytes is None
        or sensors.gpu_memory_peak_bytes > 0.5 * total
    ):
        return
    yield Symptom(
        evidence=[
            f"{trace.short_kernels_share:.0%} of the kernels take under 10 us, and "
            f"{1 - sensors.gpu_memory_peak_bytes / total:.0%} of the GPU's memory is free."
        ],
        severity="advice",
    )


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="gpu",
    threshold=THRESHOLD,
    unit="% of the GPU's kernels shorter than 10 us",
    source="torchdoctor",
    examine=_examine,
    fires=[
        {
            "trace": {
                "path": "t",
                "steps": 4,
                "has_device": True,
                "short_kernels_share": 0.9,
                "gpu_busy_share": 0.2,
            },
            "environment": {"gpus": [{"index": 0, "name": "A100", "memory_bytes": 100}]},
            "sensors": {"gpu_memory_peak_bytes": 10},
        }
    ],
    quiet=[{"trace": {"path": "t", "steps": 4, "has_device": True, "short_kernels_share": 0.1}}],
)
