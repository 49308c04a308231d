"""Chains of pointwise kernels on traces with known answers."""

from __future__ import annotations

import io

import pytest
from synthetic_traces import TraceBuilder

from torchdoctor.schema import PointwiseChains
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
COPY = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda>"
GEMM = "ampere_sgemm_128x64_nn"


def chains(trace: TraceBuilder) -> PointwiseChains:
    found = summarise(read_trace(io.BytesIO(trace.text()))).pointwise
    assert found is not None
    return found


class Stream:
    """Launches operators whose kernels follow each other on a stream, each for some time (us)."""

    def __init__(self, trace: TraceBuilder, at: float, stream: int = 7) -> None:
        self.trace, self.host, self.device, self.stream = trace, at, at + 100, stream

    def run(self, operator: str, kernel: str, us: float) -> None:
        self.trace.operator(operator, self.host, self.host + 4)
        launch = self.trace.call("cudaLaunchKernel", self.host + 1, self.host + 3)
        self.trace.kernel(kernel, self.device, self.device + us, launch, stream=self.stream)
        self.host += 5
        self.device += us


def test_a_chain_between_two_products() -> None:
    trace = TraceBuilder()
    for number in range(2):
        at = number * 1000
        trace.step(number, at, at + 1000)
        stream = Stream(trace, at)
        stream.run("aten::mm", GEMM, 100)
        for operator, us in (("aten::mul", 30), ("aten::add", 50), ("aten::tanh", 20)):
            stream.run(operator, ADD, us)
        stream.run("aten::mm", GEMM, 100)
        stream.run("aten::add", ADD, 40)  # alone: nothing to fuse it with
    found = chains(trace)
    assert (found.chains, found.kernels) == (1, 3)
    assert found.device_s == pytest.approx(100e-6)
    assert found.saved_s == pytest.approx(50e-6)  # all but the longest
    [one] = found.costliest
    assert one.operators == ["aten::mul", "aten::add", "aten::tanh"]
    assert (one.kernels, one.times_per_step) == (3, 1)


def test_chains_of_equal_operators_are_one_row_and_others_are_not() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 2000)
    stream = Stream(trace, 0)
    for names in (("mul", "add"), ("add", "mul"), ("mul", "add"), ("mul", "mul", "add")):
        for name in names:
            stream.run(f"aten::{name}", ADD, 10)
        stream.run("aten::mm", GEMM, 10)
    found = chains(trace)
    assert found.chains == 4
    rows = {tuple(one.operators): one.times_per_step for one in found.costliest}
    assert rows == {
        ("aten::mul", "aten::add"): 2,
        ("aten::add", "aten::mul"): 1,
        ("aten::mul", "aten::mul", "aten::add"): 1,
    }


def test_what_another_stream_hides_is_not_counted() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    stream = Stream(trace, 0)
    stream.run("aten::mul", ADD, 50)
    stream.run("aten::add", ADD, 50)
    trace.kernel(GEMM, 120, 180, trace.call("cudaLaunchKernel", 30, 35), stream=9)
    assert chains(trace).device_s == pytest.approx(40e-6)


def test_kernels_of_two_streams_and_of_an_optimizer_are_no_chain() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    Stream(trace, 0, stream=7).run("aten::mul", ADD, 50)
    Stream(trace, 10, stream=8).run("aten::add", ADD, 50)
    trace.slice("user_annotation", "Optimizer.step#SGD.step", 200, 300)
    stream = Stream(trace, 210)
    stream.run("aten::add_", ADD, 50)
    stream.run("aten::add_", ADD, 50)
    found = chains(trace)
    assert (found.chains, found.device_s, found.costliest) == (0, 0, [])


def test_a_copy_of_elements_belongs_to_a_chain_and_a_fused_kernel_does_not() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    stream = Stream(trace, 0)
    stream.run("aten::copy_", COPY, 10)
    stream.run("aten::mul", ADD, 10)
    stream.run("triton", "triton_poi_fused_add_mul_0", 10)
    stream.run("aten::mul", ADD, 10)
    assert [one.operators for one in chains(trace).costliest] == [["aten::copy_", "aten::mul"]]


def test_a_long_chain_is_named_by_its_beginning() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 10_000)
    stream = Stream(trace, 0)
    for _ in range(30):
        stream.run("aten::add_", ADD, 10)
    [one] = chains(trace).costliest
    assert (one.kernels, one.operators) == (30, ["aten::add_"] * 8)


def test_without_a_gpu_nothing_is_measured() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.operator("aten::add", 0, 100)
    assert summarise(read_trace(io.BytesIO(trace.text()))).pointwise is None
