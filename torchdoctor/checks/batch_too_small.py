"""The batch is too small for the GPU.

## What it means
Such kernels leave the GPU waiting for the next launch: a larger batch costs little more time.

## How it is measured
Most kernels of the trace take less than 10 microseconds, the GPU is busy less than half of the
step, and at least half of its memory is free.

## Not to be confused with
A host that is slow for other reasons, such as Python work between the operators.
"""

from torchdoctor.queries.hardware import gpu_memory_share
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, on_gpu, trace


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    used = gpu_memory_share(recording)
    if traced is None or not traced.has_device or traced.short_kernels_share is None:
        return
    if traced.short_kernels_share < CHECK.threshold or (traced.gpu_busy_share or 0.0) > 0.5:
        return
    if used is None or used > 0.5:
        return
    yield Symptom(
        evidence=fact("short-kernels", short=traced.short_kernels_share, free_memory=1 - used),
        severity="advice",
    )


CHECK = CheckSpec(
    branch="gpu",
    threshold=0.5,
    unit="% of the GPU's kernels shorter than 10 us",
    source="torchdoctor",
    sentences={
        "short-kernels": "{short:.0%} of the kernels take under 10 us, and {free_memory:.0%} of "
        "the {device}'s memory is free.",
    },
    examine=_examine,
    fires=[
        {
            **trace(has_device=True, short_kernels_share=0.9, gpu_busy_share=0.2),
            **on_gpu("A100", memory_bytes=100),
            "sensors": {"gpu_memory_peak_bytes": 10},
        }
    ],
    quiet=[trace(has_device=True, short_kernels_share=0.1)],
)
