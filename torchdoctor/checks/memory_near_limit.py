"""GPU memory is nearly full.

## What it means
The allocator must free and ask again, which synchronises; a little more, and the run dies.

## How it is measured
NVML gives the peak of the GPU memory in use, which is compared with the GPU's whole memory.

## Not to be confused with
Memory that torch keeps for later: NVML counts it as used.
"""

from torchdoctor.queries.hardware import NEARLY_FULL, gpu_memory_share
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, on_gpu


def _examine(recording: Recording) -> Symptoms:
    share = gpu_memory_share(recording)
    if share is not None and share >= CHECK.threshold:
        yield Symptom(evidence=fact("in-use", used=share), severity="moderate")


_GPUS = on_gpu("A100", memory_bytes=100)
CHECK = CheckSpec(
    branch="gpu",
    threshold=NEARLY_FULL,
    unit="% of the GPU's memory",
    source="TensorBoard profiler plugin: 90 %",
    sentences={
        "in-use": "{used:.0%} of the {device}'s memory is in use.",
    },
    examine=_examine,
    fires=[{"sensors": {"gpu_memory_peak_bytes": 95}, **_GPUS}],
    quiet=[{"sensors": {"gpu_memory_peak_bytes": 50}, **_GPUS}],
)
