"""Small Kineto traces made of known intervals, a few KB each. Times are microseconds."""

from __future__ import annotations

import json
from typing import Any

BASE = 1_700_000_000_000_000.0  # as an absolute time in microseconds
HOST, MAIN_THREAD = 4321, 4321


class TraceBuilder:
    """Collects events; `document()` is the trace as an object.

    Args:
        legacy: the categories and spellings of 2020 and 2021.
        device: id of the GPU.
    """

    def __init__(self, legacy: bool = False, device: int = 0, base: float = BASE) -> None:
        self.events: list[dict[str, Any]] = []
        self.legacy, self.device, self.base = legacy, device, base
        self.correlation = 100

    def slice(self, cat: str, name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
        old = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime"}
        old |= {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}
        event = {
            "ph": "X",
            "cat": old.get(cat, cat) if self.legacy else cat,
            "name": name,
            "pid": HOST,
            "tid": str(MAIN_THREAD) if self.legacy else MAIN_THREAD,
            "ts": self.base + start,
            "dur": end - start,
            **more,
        }
        self.events.append(event)
        return event

    def step(self, number: int, start: float, end: float) -> None:
        self.slice("user_annotation", f"ProfilerStep#{number}", start, end)

    def operator(
        self, name: str, start: float, end: float, dims: Any = None, **more: Any
    ) -> dict[str, Any]:
        key = "Input dims" if self.legacy else "Input Dims"
        args = {"External id" if not self.legacy else "external id": 7}
        return self.slice(
            "cpu_op", name, start, end, args=args | ({} if dims is None else {key: dims}), **more
        )

    def call(self, name: str, start: float, end: float) -> int:
        """A call of the CUDA runtime; returns the correlation id for what it launches."""
        self.correlation += 1
        args = {"cbid": 211, "correlation": self.correlation}
        self.slice("cuda_runtime", name, start, end, args=args)
        return self.correlation

    def on_device(
        self, cat: str, name: str, start: float, end: float, correlation: int = 0, **args: Any
    ) -> None:
        stream = args.pop("stream", 7)
        values = {"device": self.device, "context": 1, "stream": stream, **args}
        values["correlation"] = correlation
        tid = f"stream {stream}" if self.legacy else stream
        self.slice(cat, name, start, end, pid=self.device, tid=tid, args=values)
        if correlation:
            arrow = {"id": correlation, "cat": "ac2g", "name": "ac2g", "ts": self.base + start}
            self.events.append({"ph": "f", "pid": self.device, "tid": stream, "bp": "e", **arrow})

    def kernel(self, name: str, start: float, end: float, correlation: int = 0, **a: Any) -> None:
        self.on_device("kernel", name, start, end, correlation, **a)

    def copy(self, sides: str, start: float, end: float, correlation: int = 0, **a: Any) -> None:
        name = f"Memcpy {sides}"
        self.on_device("gpu_memcpy", name, start, end, correlation, **a)

    def document(self, **metadata: Any) -> dict[str, Any]:
        return {"schemaVersion": 1, "traceEvents": self.events, "traceName": "t.json", **metadata}

    def text(self, **metadata: Any) -> bytes:
        return json.dumps(self.document(**metadata), indent=1).encode()


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
# Exposed shares of every step of `every_branch()`.
EVERY_BRANCH = {
    "gpu": 0.40,
    "memcpy": 0.10,
    "memset": 0.02,
    "communication": 0.08,
    "runtime": 0.05,
    "data_loader": 0.15,
    "cpu": 0.10,
    "other": 0.10,
}


def every_branch(steps: int = 3, step: float = 1000.0, **how: Any) -> TraceBuilder:
    """Steps in which every branch is exposed for a known time and hidden for another."""
    trace = TraceBuilder(**how)
    trace.slice("Trace", "PyTorch Profiler (0)", -10, steps * step + 10, pid="Spans", tid="P")
    for number in range(steps):
        at, unit = number * step, step / 1000
        trace.step(number, at, at + step)

        def span(start: float, end: float, at: float = at, unit: float = unit) -> tuple:
            return at + start * unit, at + end * unit

        launch = trace.call("cudaLaunchKernel", *span(0, 10))
        trace.operator("aten::mm", *span(0, 350), dims=[[64, 64], [64, 64]])
        trace.operator("aten::empty", *span(5, 8), dims=[])
        trace.kernel("ampere_sgemm_128x64_nn", *span(0, 400), launch)
        copy = trace.call("cudaMemcpyAsync", *span(20, 60))
        trace.copy("HtoD (Pageable -> Device)", *span(350, 500), copy, bytes=4096, stream=9)
        trace.on_device(
            "gpu_memset",
            "Memset (Device)",
            *span(490, 520),
            trace.call("cudaMemsetAsync", *span(61, 64)),
            bytes=64,
            stream=10,
        )
        reduce = trace.call("ncclLaunch", *span(65, 70))
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", *span(520, 600), reduce, stream=20)
        trace.call("cudaStreamSynchronize", *span(560, 650))
        trace.slice("user_annotation", LOADER, *span(640, 800))
        trace.operator("aten::stack", *span(700, 750))
        trace.operator("aten::add", *span(790, 900))
    return trace
