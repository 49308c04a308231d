"""A host and a GPU that run a training loop on a clock of their own and write the trace of it.

The same loop without one of its costs gives the truth that a what-if has to find.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from synthetic_traces import LOADER, TraceBuilder

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.timeline import Timeline, build_timeline

CALL, LATENCY, GAP, WAKE_UP = 4.0, 6.0, 1.0, 5.0
AUTOGRAD = 999


class Machine:
    """Times are microseconds. `without` names costs that take no time: see `what_if.WhatIf`."""

    def __init__(self, without: str = "", queue: int = 10**9) -> None:
        self.trace = TraceBuilder()
        self.without, self.queue = without, queue
        self.now = 0.0
        self.free: dict[int, float] = {}  # per stream: when its last event ends
        self.begun: dict[int, list[float]] = {}
        self.thread: dict[str, Any] = {}

    def _host(self, us: float, cost: str = "cpu") -> tuple[float, float]:
        start, self.now = self.now, self.now + us * (self.without != cost)
        return start, self.now

    def step(self, number: int, body: Callable[[Machine], None]) -> None:
        start = self.now
        body(self)
        self.trace.step(number, start, self.now)

    def python(self, us: float) -> None:
        self._host(us)

    def operator(self, us: float) -> None:
        self.trace.operator("aten::add", *self._host(us), **self.thread)

    def load(self, us: float) -> None:
        self.trace.slice("user_annotation", LOADER, *self._host(us, "data_loader"))

    def _call(self, name: str, start: float, end: float) -> int:
        correlation = self.trace.call(name, start, end)
        self.trace.events[-1].update(self.thread)
        return correlation

    def launch(
        self, us: float, stream: int = 7, name: str = "gemm", count: int = 1, late: float = 0.0
    ) -> None:
        """Launches kernels by one call (several: a CUDA graph); `late`: an unexplained wait."""
        cost = "communication" if "nccl" in name else "gpu"
        begun = self.begun.setdefault(stream, [])
        start, end = self._host(CALL)
        if len(begun) >= self.queue and self.without != "cpu":
            self.now = end = max(end, begun[-self.queue])
        correlation = self._call(
            "cudaLaunchKernel" if count == 1 else "cudaGraphLaunch", start, end
        )
        for _ in range(count):
            begin = max(start + LATENCY, self.free.get(stream, -100.0) + GAP) + late
            self.free[stream] = begin + us * (self.without != cost)
            self.trace.kernel(name, begin, self.free[stream], correlation, stream=stream)
            begun.append(begin)

    def copy(self, us: float, sides: str, stream: int = 7, blocking: bool = False) -> None:
        start = self.now
        begin = max(start + LATENCY, self.free.get(stream, -100.0) + GAP)
        end = begin + us * (self.without != "memcpy")
        self.free[stream] = end
        self._host(CALL, "memcpy")
        if blocking and self.without != "memcpy":
            self.now = end + WAKE_UP
        correlation = self._call("cudaMemcpyAsync", start, self.now)
        self.trace.copy(sides, begin, end, correlation, stream=stream)

    def synchronize(self, stream: int | None = None) -> None:
        if self.without == "runtime":
            return
        start = self.now
        ends = [end for key, end in self.free.items() if stream in (None, key)]
        self.now = max([start + 1.0, *(end + WAKE_UP for end in ends if end > start)])
        name = "cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize"
        self._call(name, start, self.now)

    def wait(self, waiting: int, awaited: int) -> None:
        """cudaStreamWaitEvent: what `waiting` gets next begins after what `awaited` has so far."""
        start, end = self._host(1.0, "runtime")
        self._call("cudaStreamWaitEvent", start, end)
        self.free[waiting] = max(self.free.get(waiting, 0.0), self.free.get(awaited, 0.0))

    def backward(self, body: Callable[[Machine], None]) -> None:
        """The main thread sleeps while the autograd thread works."""
        self._host(20.0)
        self.thread = {"tid": AUTOGRAD}
        body(self)
        self.thread = {}
        self._host(15.0)
        self.operator(10.0)


def trained(body: Callable[[Machine], None], steps: int = 6, **how: Any) -> tuple[Trace, Timeline]:
    """The trace of some steps, and its timeline."""
    machine = Machine(**how)
    for number in range(steps):
        machine.step(number, body)
    trace = read_trace(io.BytesIO(machine.trace.text()))
    return trace, build_timeline(trace)


def mean_step_s(timeline: Timeline) -> float:
    return timeline.steps.total / len(timeline.steps) / 1e9
