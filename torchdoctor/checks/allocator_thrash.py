"""Device memory is asked of the driver again and again.

What it means
-------------
PyTorch keeps the device memory that it once got and hands it out again, which costs nothing. Where
memory is nearly full, sizes change from step to step, or `torch.cuda.empty_cache()` is called, it
has to give memory back to the driver and ask for it anew: `cudaFree` waits until the GPU is idle,
and `cudaMalloc` takes up to a millisecond.

How it is measured
------------------
Calls of cudaMalloc, cudaFree and their kin inside the steps of the trace, and the host's time in
them. A warm program makes none. An operator that gives memory back and then asks for it is a retry:
memory was full. Memory given back outside of any operator is `empty_cache()`.

Not to be confused with
-----------------------
The first steps, which fill the allocator's cache: record after some steps of warm-up.
"""

from collections.abc import Iterator

from torchdoctor.facts.counts import counted
from torchdoctor.words import CheckSpec, Recording, Symptom, TraceStatistics

THRESHOLD = 0.02


def _examine(recording: Recording) -> Iterator[Symptom]:
    trace = recording.trace
    if trace is None or not trace.allocations_per_step or not trace.step_s:
        return
    share = min((trace.allocation_s or 0.0) / trace.step_s, 1.0)
    if share < THRESHOLD or trace.allocations_per_step < 1:
        return
    yield Symptom(
        share=share,
        evidence=[
            "cudaMalloc, cudaFree and their kin hold the host "
            f"{share:.0%} of each step: {counted(trace.allocations_per_step, 'call')} a step.",
            *_causes(trace),
        ],
        severity="moderate",
    )


def _causes(trace: TraceStatistics) -> list[str]:
    """What the calls' places say, with what helps."""
    retries, releases = trace.allocator_retries_per_step, trace.releases_per_step
    found = []
    if retries:
        found.append(
            f"{counted(retries, 'operator')} a step found memory full and gave cached blocks back "
            "to get theirs: use a smaller batch, checkpoint activations, or against fragmentation "
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
        )
    if releases:
        found.append(
            f"Memory is given back outside of any operator, in {counted(releases, 'call')} a step: "
            "remove torch.cuda.empty_cache() from the loop."
        )
    return found or [
        "Where sizes vary from step to step, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    ]


_TRACE = {"path": "t", "steps": 4, "step_s": 0.01, "has_device": True}
_CALLS = {**_TRACE, "allocations_per_step": 6.0, "allocation_s": 0.001}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="% of the step in driver calls for memory",
    source="torchdoctor: a warm caching allocator calls the driver in no step",
    examine=_examine,
    fires=[
        {"trace": _CALLS},
        {"trace": {**_CALLS, "allocator_retries_per_step": 2.0, "releases_per_step": 1.0}},
    ],
    quiet=[
        {"trace": {**_TRACE, "allocations_per_step": 0.2, "allocation_s": 0.001}},
        {"trace": {**_TRACE, "allocations_per_step": 6.0, "allocation_s": 0.0001}},
    ],
)
