"""Which events of a trace belong to what a fix works on, of traces whose intervals are known."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import synthetic_traces as synthetic

from torchdoctor.schema import TracedPart
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise

FUSED = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
MADE_FOR_FP8 = "_w8a8_block_fp8_matmul"


class Step:
    """One step of 1000 us after another, in which operators launch kernels."""

    def __init__(self) -> None:
        self.trace = synthetic.TraceBuilder()
        self.trace.step(0, 0.0, 1000.0)

    def launch(
        self,
        operator: str,
        host: tuple[float, float],
        kernel: str,
        device: tuple[float, float],
        dims=None,
    ) -> Step:
        start, end = host
        self.trace.operator(operator, start, end, dims=dims)
        call = self.trace.call("cudaLaunchKernel", start + 1, start + 3)
        self.trace.kernel(kernel, *device, call)
        return self

    def parts(self, folder: Path) -> dict[str, TracedPart]:
        file = folder / "trace.json.gz"
        file.write_bytes(gzip.compress(self.trace.text()))
        return summarise(read_trace(file)).parts


def us(seconds: float) -> float:
    return pytest.approx(seconds * 1e-6)


def test_a_compiler_fuses_no_products_and_no_kernels_of_the_program(tmp_path: Path) -> None:
    """Compiling was said to gain 24.7x where FP8 products of the program's own took the step."""
    step = Step()
    step.launch("aten::mm", (0, 10), "ampere_sgemm_128x64_nn", (10, 210))
    step.launch("aten::add", (10, 20), FUSED, (210, 260))
    step.launch("aten::mul", (20, 30), FUSED, (260, 280))
    step.launch("sgl_kernel::fp8", (30, 40), MADE_FOR_FP8, (280, 880))
    step.launch("my::own", (40, 50), "my_kernel(float*)", (880, 900))
    parts = step.parts(tmp_path)
    assert parts["elementwise"].device_s == us(70)
    assert parts["elementwise"].remains_s == us(50), "one kernel, as long as the longest"
    assert parts["elementwise"].beside_s == us(820)
    assert parts["products"].device_s == us(800)
    assert parts["model"].beside_s == us(820), "so that much of the step stays"


def test_convolutions_along_one_side_are_told_from_those_of_images(tmp_path: Path) -> None:
    step, kernel = Step(), "sm80_xmma_fprop_implicit_gemm_f16f16"
    line, image = [[512, 4, 8256], [64, 4, 1]], [[8, 3, 64, 64], [16, 3, 3, 3]]
    step.launch("aten::conv1d", (0, 10), kernel, (10, 110), dims=line)
    step.launch("aten::cudnn_convolution", (10, 20), kernel, (110, 140), dims=[[8, 4, 1, 99]])
    step.launch("aten::conv2d", (20, 30), kernel, (140, 180), dims=image)
    parts = step.parts(tmp_path)
    assert parts["flat convolutions"].device_s == us(130)
    assert parts["convolutions"].device_s == us(40)


def test_the_update_is_the_optimizers_range_and_what_it_launches(tmp_path: Path) -> None:
    step = Step()
    step.launch("aten::mm", (0, 10), "ampere_sgemm_128x64_nn", (10, 110))
    step.launch("aten::add_", (210, 230), FUSED, (240, 300))
    step.trace.slice("user_annotation", "Optimizer.step#SGD.step", 200, 250)
    parts = step.parts(tmp_path)
    assert parts["optimizer"].seconds == us(100), "50 on the host, and 50 more on the device"
    assert parts["optimizer"].device_s == us(60)
    assert "elementwise" not in parts, "an update is no part of the model"


def test_a_pageable_copy_holds_the_host_but_not_while_the_device_works(tmp_path: Path) -> None:
    step = Step()
    step.launch("aten::mm", (0, 10), "ampere_sgemm_128x64_nn", (10, 310))
    call = step.trace.call("cudaMemcpyAsync", 20, 420)
    step.trace.copy("HtoD (Pageable -> Device)", 320, 400, call, bytes=1_000_000)
    own = step.parts(tmp_path)["pageable copies to the device"]
    assert own.seconds == us(110), "before, it waited for the product"
    assert (own.device_s, own.bytes) == (us(80), 1_000_000)


def test_random_numbers_of_the_host_stay_where_they_are_made(tmp_path: Path) -> None:
    step = Step()
    step.trace.operator("aten::randn", 0, 400)
    step.trace.operator("aten::normal_", 10, 390)
    step.launch("aten::randn", (400, 410), "distribution_elementwise_kernel", (410, 450))
    parts = step.parts(tmp_path)
    assert parts["random numbers"].seconds == us(400)
    assert parts["model"].seconds < 700e-6


def test_launches_are_the_hosts_own_and_leave_all_kernels(tmp_path: Path) -> None:
    """Graphs save the host's time, and of it no more than the device leaves."""
    step = Step().launch("aten::add", (0, 40), FUSED, (100, 900))
    launches = step.parts(tmp_path)["launches"]
    assert launches.device_s == 0 and launches.beside_s == us(800)
    assert launches.seconds >= 40e-6 * 0.999


def test_biases_are_the_kernels_by_element_within_convolutions(tmp_path: Path) -> None:
    step = Step()
    step.launch(
        "aten::conv2d",
        (0, 10),
        "implicit_convolve_sgemm",
        (10, 110),
        dims=[[8, 3, 32, 32], [16, 3, 3, 3]],
    )
    step.launch("aten::conv2d", (20, 30), FUSED, (110, 150), dims=[[8, 3, 32, 32], [16, 3, 3, 3]])
    step.launch("aten::add", (40, 50), FUSED, (150, 200))
    assert step.parts(tmp_path)["biases of convolutions"].device_s == us(40)


def test_a_wait_for_ranks_within_an_operator_hands_nothing_out(tmp_path: Path) -> None:
    """Compiling was said to end the waits of a sharded model's backward for other ranks."""
    step = Step()
    step.trace.operator("RegisterPostBackwardFunctionBackward", 0, 400)
    step.trace.operator("aten::view", 10, 20)
    step.trace.operator("aten::view", 390, 395)
    step.trace.slice("user_annotation", "gloo:all_reduce", 100, 400, tid=77)
    step.trace.operator("aten::addmm", 450, 1000)
    assert step.parts(tmp_path)["model"].seconds < 200e-6
