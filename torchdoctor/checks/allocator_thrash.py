"""Device memory is asked of the driver again and again.

## What it means
PyTorch keeps the device memory that it once got and hands it out again, which costs nothing. If
memory is nearly full, if sizes change from step to step, or if `torch.cuda.empty_cache()` is
called, PyTorch gives memory back to the driver and asks for it anew. Each `cudaFree` waits until
the GPU is idle, and each `cudaMalloc` takes up to a millisecond.

## How it is measured
torchdoctor counts the calls of cudaMalloc, cudaFree and their kin inside the steps of the trace,
with the host's time in them. A warm program makes none. An operator that gives memory back and then
asks for it is a retry: memory was full. A call outside of any operator may be `empty_cache()`. If
tensors ask the driver for less than 2 MiB, the caching allocator is off.

## Not to be confused with
The first steps, which fill the allocator's cache: record after some steps of warm-up.
"""

from torchdoctor.queries.analysed import calls_of
from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    Recording,
    Symptom,
    Symptoms,
    TraceStatistics,
    fact,
    trace,
)

_ROUNDING = 0.005


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    if traced is None or not traced.allocations_per_step or not traced.step_s:
        return
    held = min((traced.allocation_s or 0.0) / traced.step_s, 1.0)
    causes = _causes(traced)
    # A window without marks may hold the first calls, which a program makes once.
    if held < CHECK.threshold or traced.allocations_per_step < 1 or not (causes or traced.steps):
        return
    # While kernels run, the wait costs nothing.
    share = min(held, 1.0 - (recording.shares.gpu or 0.0))
    allocations = fact(
        "calls",
        share=share,
        held=held,
        exposed=share if share < held - _ROUNDING else None,
        calls=traced.allocations_per_step,
    )
    emptied = [
        tensor_call.location
        for tensor_call in calls_of(recording, "wait")
        if tensor_call.name == "empty_cache"
    ]
    evidence = [allocations, *(causes or [fact("sizes-vary")])]
    where = emptied[0] if emptied else None
    yield Symptom(share=share, evidence=evidence, location=where, severity="moderate")


def _causes(traced: TraceStatistics) -> list[Evidence]:
    retries = traced.allocator_retries_per_step
    releases = traced.releases_per_step
    if traced.uncached_per_step:
        return [fact("cache-off", calls=traced.uncached_per_step)]
    causes = []
    if retries:
        causes.append(fact("memory-full", operators=retries))
    if releases:
        causes.append(fact("given-back", calls=releases))
    return causes


_CALLS = {"has_device": True, "allocations_per_step": 6.0, "allocation_s": 0.01}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.02,
    unit="% of the step in driver calls for memory",
    source="torchdoctor: a warm caching allocator calls the driver in no step",
    verdict="last",  # the cause
    sentences={
        "calls": "Driver calls for memory (Malloc, Free) hold the host {held:.0%} of "
        "{each_step}[, {exposed:.0%} while no kernel runs]: {calls:counted call} {a_step}.",
        "sizes-vary": "Where sizes vary from step to step, let segments grow.",
        "cache-off": "PyTorch's caching allocator is off (PYTORCH_NO_CUDA_MEMORY_CACHING): it "
        "would not make {calls:counted call} {a_step}. Unset the variable.",
        "memory-full": "{operators:counted operator} {a_step} found memory full and gave cached "
        "blocks back to get theirs: use a smaller batch, checkpoint activations, or let segments "
        "grow.",
        "given-back": "Memory is given back outside of any operator, in {calls:counted call} "
        "{a_step}: if the loop calls torch.cuda.empty_cache(), remove it.",
    },
    examine=_examine,
    fires=[
        trace(**_CALLS, allocator_retries_per_step=2.0, releases_per_step=1.0),
        trace(**_CALLS, uncached_per_step=4.0),
    ],
    quiet=[trace(**{**_CALLS, "allocation_s": 0.001})],
)
