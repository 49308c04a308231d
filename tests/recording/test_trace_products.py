"""Recorded input sizes -> FLOPs, MFU, roofline and uneven sizes, on traces with known answers."""

from __future__ import annotations

import io
from typing import Any

import pytest
from synthetic_traces import TraceBuilder

from torchdoctor.schema import MatrixWork, TraceStatistics
from torchdoctor.trace.product_sizes import ProductInputs, product_sizes
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise

A100 = [
    {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0},
]
TENSOR = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"
BF16 = ["c10::BFloat16", "c10::BFloat16"]


def statistics(trace: TraceBuilder, **metadata: Any) -> TraceStatistics:
    return summarise(read_trace(io.BytesIO(trace.text(**metadata))))


def one_product(
    name: str, dims: Any, *, kernel: str = TENSOR, us: float = 100, **args: Any
) -> TraceBuilder:
    """Two steps of 1000 us with one product each, whose kernel takes `us`."""
    trace = TraceBuilder()
    for number in range(2):
        at = number * 1000
        trace.step(number, at, at + 1000)
        operator = trace.operator(name, at + 10, at + 60, dims)
        operator["args"].update(args)
        launch = trace.call("cudaLaunchKernel", at + 20, at + 30)
        trace.kernel(kernel, at + 100, at + 100 + us, launch)
    return trace


def work_of(trace: TraceBuilder, **metadata: Any) -> MatrixWork:
    work = statistics(trace, deviceProperties=A100, **metadata).matrix_work
    assert work is not None
    return work


def test_mfu_and_roofline_of_one_product() -> None:
    trace = one_product("aten::mm", [[4096, 4096], [4096, 4096]], us=800, **{"Input type": BF16})
    work = work_of(trace)
    assert work.flops == 2 * 4096**3
    assert work.gpu == "A100 80GB SXM"
    assert work.mfu == pytest.approx(2 * 4096**3 / 312e12 / 1e-3)
    assert work.peak_share == pytest.approx(2 * 4096**3 / 312e12 / 0.8e-3)
    assert (work.known_share, work.memory_bound_s) == (1.0, 0.0)
    assert work.compute_bound_s == work.device_s == pytest.approx(800e-6)
    [product] = work.products
    assert (product.precision, product.compute_bound, product.uneven) == ("bfloat16", True, [])


def test_a_thin_product_is_memory_bound() -> None:
    work = work_of(one_product("aten::mm", [[16, 4096], [4096, 4096]], **{"Input type": BF16}))
    assert work.products[0].compute_bound is False
    assert work.memory_bound_s == pytest.approx(100e-6)


@pytest.mark.parametrize(
    ("kernel", "types", "precision"),
    [
        ("ampere_sgemm_128x64_nn", ["float", "float"], "float32"),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align4", ["float", "float"], "tf32"),
        ("ampere_h16816gemm_128x128_ldg8_stages_64x3_nn", ["c10::Half", "c10::Half"], "float16"),
        ("ampere_sgemm_128x64_nn", [], "float32"),
        (TENSOR, [], None),
    ],
)
def test_precision_by_type_and_kernel(kernel: str, types: list[str], precision: str) -> None:
    trace = one_product("aten::mm", [[64, 64], [64, 64]], kernel=kernel, **{"Input type": types})
    work = work_of(trace)
    assert work.products[0].precision == precision
    assert (work.mfu is None) == (precision is None)


@pytest.mark.parametrize(
    ("name", "dims", "concrete", "flops"),
    [
        ("aten::addmm", [[10], [32, 64], [64, 10], [], []], [], 2 * 32 * 64 * 10),
        ("aten::bmm", [[8, 5, 7], [8, 7, 9]], [], 2 * 8 * 5 * 7 * 9),
        ("aten::baddbmm", [[8, 5, 9], [8, 5, 7], [8, 7, 9]], [], 2 * 8 * 5 * 7 * 9),
        ("aten::linear", [[4, 8, 64], [10, 64], [10]], [], 2 * 4 * 8 * 64 * 10),
        (
            "aten::convolution",
            [[2, 3, 224, 224], [64, 3, 7, 7]],
            ["", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"],
            2 * 2 * 112 * 112 * 64 * 3 * 49,
        ),
        (
            "aten::convolution",  # depthwise
            [[2, 32, 56, 56], [32, 1, 3, 3]],
            ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "32"],
            2 * 2 * 56 * 56 * 32 * 9,
        ),
        (
            "aten::convolution",  # transposed: 16 channels to 8, twice as wide
            [[2, 16, 10, 10], [16, 8, 2, 2]],
            ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"],
            2 * 2 * 100 * 16 * 8 * 4,
        ),
        (
            "aten::convolution_backward",  # the first layer: no gradient of the image
            [[2, 64, 112, 112], [2, 3, 224, 224], [64, 3, 7, 7]],
            [*[""] * 7, "False", "", "1", "[False, True, True]"],
            2 * 2 * 112 * 112 * 64 * 3 * 49,
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            [[2, 8, 128, 64]] * 3,
            [],
            2 * 2 * (2 * 8 * 128 * 128 * 64),
        ),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            [[2, 8, 128, 64]] * 5,
            [],
            5 * (2 * 2 * 8 * 128 * 128 * 64),
        ),
    ],
)
def test_flops_of_each_operator(name: str, dims: Any, concrete: list[str], flops: int) -> None:
    trace = one_product(name, dims, **({"Concrete Inputs": concrete} if concrete else {}))
    assert work_of(trace).flops == flops


def test_wrappers_and_autocast_are_counted_once_and_in_the_inner_precision() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    half = {"Input type": ["c10::BFloat16"] * 3}
    outer = trace.operator("aten::linear", 10, 90, [[32, 64], [16, 64], [16]])
    outer["args"]["Input type"] = ["float"] * 3
    trace.operator("aten::linear", 30, 80, [[32, 64], [16, 64], [16]])["args"].update(half)
    trace.operator("aten::addmm", 40, 70, [[16], [32, 64], [64, 16]])["args"].update(half)
    trace.kernel(TENSOR, 100, 200, trace.call("cudaLaunchKernel", 50, 60))
    work = work_of(trace)
    assert work.flops == 2 * 32 * 64 * 16
    assert [one.precision for one in work.products] == ["bfloat16"]


def test_a_convolution_without_stride_takes_its_output_from_its_backward() -> None:
    """Traces of 2020 to 2022 have no argument values."""
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.operator("aten::convolution", 10, 60, [[2, 3, 224, 224], [64, 3, 7, 7]])
    trace.kernel("volta_scudnn_128x64", 100, 200, trace.call("cudaLaunchKernel", 20, 30))
    backward = [[2, 3, 224, 224], [2, 64, 112, 112], [64, 3, 7, 7]]
    trace.operator("aten::cudnn_convolution_backward", 210, 290, backward)
    trace.operator("aten::cudnn_convolution_backward_weight", 215, 285)
    trace.kernel("volta_scudnn_128x64", 300, 400, trace.call("cudaLaunchKernel", 220, 230))
    forward = 2 * 2 * 112 * 112 * 64 * 3 * 49
    assert work_of(trace).flops == 2 * forward  # one gradient only


def test_a_convolution_of_unknown_output_is_not_guessed() -> None:
    trace = one_product("aten::convolution", [[2, 3, 224, 224], [64, 3, 7, 7]])
    assert statistics(trace, deviceProperties=A100).matrix_work is None


@pytest.mark.parametrize(
    ("sizes", "strides", "uneven"),
    [
        ([[64, 512], [512, 50257]], None, [("columns", 50257, 8)]),
        ([[64, 510], [510, 50256]], None, [("inner", 510, 8)]),
        ([[64, 512], [512, 1000]], None, [("columns", 1000, 64)]),  # better on an A100
        ([[141, 512], [512, 512]], None, []),  # rows do not matter to rows of memory
        ([[512, 141], [141, 512]], [[1, 512], [512, 1]], []),  # a gradient: x.t() @ y
        ([[510, 141], [141, 512]], [[1, 510], [512, 1]], [("rows", 510, 8)]),
        ([[64, 512], [512, 1]], None, []),
    ],
)
def test_sizes_that_tensor_cores_want(sizes: Any, strides: Any, uneven: list[tuple]) -> None:
    more = {"Input type": BF16} | ({"Input Strides": strides} if strides else {})
    [product] = work_of(one_product("aten::mm", sizes, **more)).products
    assert [(one.dimension, one.size, one.multiple) for one in product.uneven] == uneven


def test_sizes_do_not_matter_without_tensor_cores() -> None:
    trace = one_product("aten::mm", [[64, 511], [511, 513]], kernel="ampere_sgemm_128x64_nn")
    assert work_of(trace).products[0].uneven == []


def test_the_line_that_calls_it_is_named() -> None:
    trace = one_product("aten::mm", [[64, 512], [512, 513]], **{"Input type": BF16})
    trace.slice("python_function", "train.py(3): <module>", 0, 2000)
    trace.slice("python_function", "model.py(41): forward", 5, 70)
    trace.slice("python_function", "torch/nn/modules/linear.py(12): forward", 8, 65)
    location = work_of(trace).products[0].location
    assert location is not None
    assert (location.file, location.line, location.function) == ("model.py", 41, "forward")


def test_the_call_stack_that_old_releases_wrote_to_an_operator() -> None:
    stack = (
        "/x/site-packages/torch/nn/modules/linear.py(99): forward;net.py(7): f;run.py(1): <module>"
    )
    trace = one_product("aten::mm", [[64, 512], [512, 513]], **{"Call stack": stack})
    location = work_of(trace).products[0].location
    assert location is not None
    assert (location.file, location.line) == ("net.py", 7)


def test_a_product_under_a_collective_keeps_its_time() -> None:
    trace = one_product("aten::mm", [[64, 64], [64, 64]])
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 900, stream=20)
    found = statistics(trace, deviceProperties=A100)
    assert found.matrix_work is not None
    assert found.matrix_work.device_s == pytest.approx(100e-6)
    by_name = {one.name: one.device_s for one in found.operators}
    assert by_name["aten::mm"] == pytest.approx(100e-6)


def test_kernels_of_a_replayed_graph_leave_the_mfu_unknown() -> None:
    trace = one_product("aten::mm", [[64, 64], [64, 64]])
    trace.kernel(TENSOR, 300, 900, trace.call("cudaGraphLaunch", 70, 80))
    work = work_of(trace)
    assert work.known_share < 0.5
    assert work.mfu is None


def test_an_unknown_gpu_has_no_mfu_and_still_its_arithmetic() -> None:
    trace = one_product("aten::mm", [[64, 64], [64, 64]])
    work = statistics(trace).matrix_work
    assert work is not None
    assert (work.gpu, work.mfu, work.compute_bound_s) == (None, None, None)
    assert work.flops == 2 * 64**3


def test_without_recorded_sizes_nothing_is_measured() -> None:
    assert statistics(one_product("aten::mm", None), deviceProperties=A100).matrix_work is None


@pytest.mark.parametrize(
    ("operator", "dims"),
    [
        ("aten::mm", b"[[4, 5]]"),
        ("aten::mm", b"[[4, 5], [6, 7]]"),
        ("aten::mm", b"[[4], [4, 4]]"),
        ("aten::mm", b"[[0, 4], [4, 4]]"),
        ("aten::mm", b'["a", 3]'),
        ("aten::mm", b"not JSON"),
        ("aten::bmm", b"[[[2, 3], [4]], [1, 2, 3]]"),
        ("aten::linear", b"[[], []]"),
        ("aten::convolution", b"[[1, 2, 3], [4, 5, 6, 7]]"),
        ("aten::scaled_dot_product_attention", b"[[], [], []]"),
    ],
)
def test_sizes_that_make_no_sense_are_left_out(operator: str, dims: bytes) -> None:
    assert product_sizes(ProductInputs(operator, dims, b"", b"", b"", b""), 0, {}) is None
