"""Traces of one rank that trains: a backward pass on a thread of its own, and its exchange."""

from __future__ import annotations

from typing import Any

from synthetic_traces import TraceBuilder

BACKWARD_THREAD = 99
STEP_US = 10_000.0
# Elements of float32, when it is launched, begins and ends.
BUCKETS = ((3_000_000, 5900.0, 6000.0, 8000.0), (1_000_000, 5950.0, 8000.0, 9000.0))


def rank_trace(
    steps: int = 2,
    ranks: int = 2,
    collective: str = "AllReduce",
    sizes_in: str | None = "kernel",
    gradients: bool = True,
    other_us: float = 0.0,
) -> TraceBuilder:
    """Steps of 10 ms: forward kernels for 2 ms, backward from 3 to 7 ms, then the exchange.

    Args:
        collective: as kernels name it; "" for a single process.
        sizes_in: "kernel" as since torch 2.3, "range" as before with record_shapes, None: nowhere.
        gradients: whether AccumulateGrad has the sizes of its inputs.
        other_us: of a collective in each step that exchanges no gradients.
    """
    trace = TraceBuilder()
    for number in range(steps):
        at = number * STEP_US
        trace.step(number, at, at + STEP_US)
        trace.operator("aten::mm", at, at + 1000)
        trace.kernel("sgemm", at + 100, at + 2100, trace.call("cudaLaunchKernel", at, at + 10))
        _backward(trace, at, gradients)
        for elements, *times in BUCKETS if collective else ():
            moments = [at + moment for moment in times]
            _exchange(trace, moments, collective, int(elements), ranks, sizes_in)
        if collective:  # the host waits for the exchange before it updates the weights
            trace.call("cudaStreamSynchronize", at + 6000, at + 9010)
        if other_us:
            launch = trace.call("cudaLaunchKernel", at + 20, at + 30)
            trace.kernel("ncclDevKernel_SendRecv(x)", at + 40, at + 40 + other_us, launch, stream=9)
        trace.operator("Optimizer.step#SGD.step", at + 9100, at + 9200)
    return trace


def text(trace: TraceBuilder, ranks: int = 2, gpu: str = "NVIDIA A100-SXM4-80GB") -> bytes:
    """The trace as a file's bytes, with what the profiler says of job and GPU."""
    about = {"backend": "nccl", "rank": 0, "world_size": ranks}
    more: dict[str, Any] = {"distributedInfo": about} if ranks > 1 else {}
    return trace.text(deviceProperties=[{"id": 0, "name": gpu, "computeMajor": 8}], **more)


def _backward(trace: TraceBuilder, at: float, gradients: bool) -> None:
    for start, end in ((3000.0, 4500.0), (5000.0, 7000.0)):
        launch = trace.call("cudaLaunchKernel", at + start - 90, at + start - 80)
        trace.events[-1]["tid"] = BACKWARD_THREAD
        trace.operator(
            "autograd::engine::evaluate_function: MmBackward0",
            at + start - 100,
            at + start - 50,
            tid=BACKWARD_THREAD,
        )
        trace.kernel("sgemm_backward", at + start, at + end, launch)
        args = {"Input Dims": [[1000, 2000]], "Input type": ["float"]} if gradients else {}
        trace.slice(
            "cpu_op",
            "torch::autograd::AccumulateGrad",
            at + start - 45,
            at + start - 40,
            tid=BACKWARD_THREAD,
            args=args,
        )


def _exchange(
    trace: TraceBuilder,
    moments: list[float],
    collective: str,
    elements: int,
    ranks: int,
    sizes_in: str | None,
) -> None:
    called, start, end = moments
    launch = trace.call("cudaLaunchKernel", called + 10, called + 20)
    trace.events[-1]["tid"] = BACKWARD_THREAD
    sizes = {"Input Dims": [[elements]], "Input type": ["float"]} if sizes_in == "range" else {}
    named = {"AllReduce": "all_reduce", "ReduceScatter": "_reduce_scatter_base"}[collective]
    trace.slice(
        "user_annotation",
        f"nccl:{named}",
        called,
        called + 40,
        tid=BACKWARD_THREAD,
        args=sizes,
    )
    told: dict[str, Any] = {}
    if sizes_in == "kernel":
        told = {
            "In msg nelems": elements,
            "Out msg nelems": elements // (1 if collective == "AllReduce" else ranks),
            "dtype": "Float",
            "Group size": ranks,
        }
    trace.kernel(f"ncclDevKernel_{collective}_Sum_f32(x)", start, end, launch, stream=20, **told)
