"""The GPU's limit while it works: its arithmetic, or its memory's bandwidth.

## What it means
A kernel can be as fast as the GPU computes or as fast as it moves the data, whichever takes longer
(the roofline). Compute-bound work gains from lower precision and from a GPU with more arithmetic;
memory-bound work from fused kernels, larger batches and smaller types. MFU (model FLOPs
utilisation) is the share of the step that its matrix products would take at the dense peak.

## What to do
Nothing is wrong by itself. For compute-bound work see mixed-precision, tf32, pad-to-multiple and
better-gpu; for memory-bound work torch-compile, fused-optimizer, attention and larger-batch.

## How it is measured
The FLOPs and bytes of matrix products, convolutions and attention follow from their recorded input
sizes. They are compared with the data sheet's dense peak of their precision and memory bandwidth.
All other kernels (normalisation, pointwise, softmax, reductions) count as moving memory. The check
needs input sizes (record_shapes=True), kernels outside CUDA graphs, and a GPU in the table.

## Not to be confused with
The GPU's utilization, which is high as soon as any kernel runs. Work that is done twice (activation
checkpointing) is counted twice here, so this MFU is then too high.
"""

from typing import Any

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, trace


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    work = traced.matrix_work if traced is not None else None
    if traced is None or work is None or work.mfu is None or not traced.step_s:
        return
    share = min(work.device_s / traced.step_s, 1.0)
    by_compute = work.compute_bound_s or 0.0
    by_memory = work.memory_bound_s or 0.0
    if share < CHECK.threshold or not by_compute + by_memory:
        return
    kernels_s = max((traced.shares.gpu or 0.0) * traced.step_s, work.device_s)
    bound = "compute-bound" if by_compute >= 0.5 * kernels_s else "memory-bound"
    peak = work.peak_share
    yield Symptom(
        share=share,
        evidence=[
            fact(
                bound,
                gpu=work.gpu,
                by_compute=by_compute / kernels_s,
                by_memory=by_memory / kernels_s,
                others=max(1 - (by_compute + by_memory) / kernels_s, 0.0),
            ),
            fact("mfu", mfu=work.mfu, gflop=work.flops / 1e9, reached=peak, source=work.source),
        ],
        severity="advice",
    )


_WORK = {
    "flops": 7.8e11,
    "device_s": 0.067,
    "known_share": 1.0,
    "mfu": 0.28,
    "peak_share": 0.74,
    "compute_bound_s": 0.066,
    "memory_bound_s": 0.001,
}


def _work(**changes: Any) -> dict[str, Any]:
    return trace(has_device=True, shares={"gpu": 0.9}, matrix_work={**_WORK, **changes})


_KERNEL_TIME = (
    "of its kernel time, {by_compute:.0%} are products that arithmetic limits on a {gpu}, "
    "{by_memory:.0%} products that memory bandwidth limits by their sizes, and {others:.0%} other "
    "kernels, which move memory."
)
CHECK = CheckSpec(
    branch="gpu",
    threshold=0.1,
    unit="% of the step in matrix products",
    source="torchdoctor: below it MFU says little",
    sentences={
        "compute-bound": "The {device}'s work is compute-bound: " + _KERNEL_TIME,
        "memory-bound": "The {device}'s work is memory-bound: " + _KERNEL_TIME,
        "mfu": "MFU {mfu:.1%}: {gflop:.0f} GFLOP {a_step}, against the dense peak of their "
        "precision[; while they run they reach {reached:.0%}] ({source}).",
    },
    examine=_examine,
    fires=[_work(), _work(compute_bound_s=0.01, memory_bound_s=0.057)],
    quiet=[_work(mfu=None), _work(device_s=0.001)],
)
