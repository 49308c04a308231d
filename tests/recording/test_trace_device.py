"""Device figures on traces made of known events."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from synthetic_traces import TraceBuilder, every_branch

from torchdoctor.schema import TraceStatistics
from torchdoctor.schema.record_files import parsed_toml
from torchdoctor.trace import kinds
from torchdoctor.trace.kinds import (
    is_communication,
    is_matrix_work,
    short_name,
    uses_tensor_cores,
)
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise


def statistics(builder: TraceBuilder) -> TraceStatistics:
    return summarise(read_trace(io.BytesIO(builder.text())))


def test_figures_of_every_branch() -> None:
    found = statistics(every_branch())
    assert found.has_device
    assert found.steps == 3
    assert found.step_s == pytest.approx(1e-3)
    assert found.kernels_per_step == 2
    assert found.gpu_busy_share == pytest.approx(0.48)  # kernels: 0 to 400 and 520 to 600
    assert found.communication_s == pytest.approx(80e-6)
    assert found.communication_exposed_s == pytest.approx(80e-6)
    assert found.h2d_bytes == 4096
    assert found.d2h_bytes == 0
    assert found.pageable_copies == 1
    assert found.blocking_copy_s == pytest.approx(20e-6)  # a call of 40 us, 20 of them its price
    assert found.syncs_per_step == 1
    assert found.sync_s == pytest.approx(90e-6)
    assert found.float32_matrix_s == pytest.approx(400e-6)
    assert found.doubts == []


def test_copies_without_byte_counts_are_not_measured() -> None:
    trace = every_branch()
    for event in trace.events:
        event.get("args", {}).pop("bytes", None)
    found = statistics(trace)
    assert found.h2d_bytes is None
    assert found.d2h_bytes == 0
    assert found.pageable_copies == 1


def test_short_kernels_and_their_median() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    for number, length in enumerate((2, 4, 6, 50)):
        call = trace.call("cudaLaunchKernel", number * 10, number * 10 + 5)
        trace.kernel("elementwise_kernel", 100 + number * 100, 100 + number * 100 + length, call)
    found = statistics(trace)
    assert found.short_kernels_share == pytest.approx(0.75)
    assert found.kernel_median_us == pytest.approx(5)


def test_streams_overlap_and_devices_average() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 100)
    for device, start, end, stream in ((0, 0, 60, 7), (0, 40, 80, 9), (1, 0, 40, 7)):
        trace.device = device
        call = trace.call("cudaLaunchKernel", 0, 2)
        trace.kernel("k", start, end, call, stream=stream)
    assert statistics(trace).gpu_busy_share == pytest.approx((0.8 + 0.4) / 2)


def test_synchronisation_by_hip_and_driver_names() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 100)
    trace.kernel("k", 10, 20, trace.call("hipLaunchKernel", 0, 2))
    for number, name in enumerate(
        ("hipStreamSynchronize", "hipDeviceSynchronize", "cudaEventSynchronize", "cuCtxSynchronize")
    ):
        trace.call(name, 30 + number * 10, 35 + number * 10)
    trace.call("cudaStreamWaitEvent", 80, 90)  # the device waits there, the host does not
    found = statistics(trace)
    assert found.syncs_per_step == 4
    assert found.sync_s == pytest.approx(20e-6)


def test_a_wait_is_worth_what_follows_it() -> None:
    """A third of the step went into waits after which nothing but the step's end came."""
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.kernel("k", 10, 500, trace.call("cudaLaunchKernel", 0, 5))
    trace.call("cudaStreamSynchronize", 10, 505)  # 95 us pass until the next kernel
    trace.kernel("k", 600, 960, trace.call("cudaLaunchKernel", 590, 595))
    trace.call("cudaDeviceSynchronize", 600, 970)  # 30 us until the step ends
    assert statistics(trace).after_sync_s == pytest.approx(125e-6)


def test_what_follows_the_last_of_several_waits_is_worth_all_of_them() -> None:
    """`print(loss)` waits long, and computes what it shows in little kernels with a wait each."""
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.kernel("k", 10, 500, trace.call("cudaLaunchKernel", 0, 5))
    trace.call("cudaStreamSynchronize", 10, 505)
    trace.kernel("abs", 510, 515, trace.call("cudaLaunchKernel", 507, 509))
    copy = trace.call("cudaMemcpyAsync", 511, 519)
    trace.copy("DtoH (Device -> Pageable)", 515, 518, copy, bytes=4)
    trace.call("cudaStreamSynchronize", 519, 520)  # of the same value
    assert statistics(trace).after_sync_s == pytest.approx(485e-6)


def test_graph_launches_without_kernels_are_said() -> None:
    trace = every_branch()
    trace.call("cudaGraphLaunch", 900, 910)
    assert any(doubt.fact == "silent-graphs" for doubt in statistics(trace).doubts)


def test_device_events_without_launches_are_said() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 100)
    trace.kernel("k", 10, 60)
    found = statistics(trace)
    assert found.shares.gpu == pytest.approx(0.5)
    assert any(doubt.fact == "launches-unnamed" for doubt in found.doubts)


@pytest.mark.parametrize(
    ("name", "matrix", "tensor"),
    [
        ("volta_s884gemm_fp16_128x128_ldg8_f2f_nn", True, True),
        ("volta_h884gemm_64x128_ldg8_nn", True, True),
        ("turing_fp16_s1688gemm_fp16_128x64_ldg8_f2f_tn", True, True),
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_nn", True, True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64>", True, True),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", True, True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", True, True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", True, True),
        (
            "void cutlass::device_kernel<at::cuda::GemmUniversal<MainloopSm90TmaGmmaWarp>>",
            True,
            True,
        ),
        ("bmm_MxE4m3_E4m3_Fp32_t128x64x256_s3_et64x64_m64x64x32_cga1x1x1_16dp256b", True, True),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0", True, True),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>", True, True),
        ("volta_sgemm_128x64_nn", True, False),
        ("ampere_sgemm_128x64_tn", True, False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>", True, False),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>", True, False),
        ("void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1>", True, False),
        ("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>", False, False),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", False, False),
        ("void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>", False, False),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)", False, False),
        ("volta_scudnn_128x64_relu_interior_nn_v1", True, False),
        ("cask_cudnn::computeWgradSplitKOffsetsKernel(ComputeSplitKOffsetsParams)", False, False),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", False, False),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", False, False),
    ],
)
def test_kernel_names(name: str, matrix: bool, tensor: bool) -> None:
    assert is_matrix_work(name) is matrix
    assert uses_tensor_cores(name) is tensor
    assert is_communication(name) is name.startswith("nccl")


ENTRIES = parsed_toml(Path(kinds.__file__).with_name("kernels.toml").read_text())["entry"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry['kind']}-{entry['names'][0]}")
def test_each_entry_of_the_kernels_names_what_traces_have(entry: dict) -> None:
    own = re.compile("|".join(entry["names"]), re.IGNORECASE)
    assert entry["source"]
    assert set(entry) <= {"kind", "names", "examples", "not", "source"}
    assert [name for name in entry["examples"] if not own.search(name)] == []
    assert [x for x in entry.get("not", []) if entry["kind"] in kinds.kernel_kinds(x)] == []


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_convolution_max_pool2d_with_indices_relu_2",
        "triton_tem_fused_addmm_relu_5",
        "_attn_fwd",
        "kernel_unified_attention_2d",
        "gemm_kernel",
        "_w8a8_block_fp8_matmul",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u, 1u, 64u>(float*, int*)",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu",
        "void marlin::Marlin<1125899906909960l, 256, 4, 16, 4, false>(int4 const*, float*)",
        "void implicit_convolve_sgemm<__half, __half, 128, 5, 5, 3, 3, 3, 1>",
        "igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x32_wt32x32x8",
    ],
)
def test_what_no_name_calls_float32_is_not(name: str) -> None:
    """Tensor cores with names of their own got advice to use TF32 and autocast."""
    assert not kinds.computes_float32(name)
    trace = TraceBuilder()
    trace.step(0, 0, 100)
    trace.slice("cpu_op", "aten::mm", 0, 10, args={"Input type": ["c10::BFloat16"] * 2})
    trace.kernel(name, 10, 90, trace.call("cudaLaunchKernel", 2, 5))
    assert statistics(trace).float32_matrix_s == 0


def test_inputs_in_float32_say_what_a_name_does_not() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 200)
    for at, name in ((0, "gemm_kernel"), (20, "cutlass_80_tensorop_s1688gemm_64x64_16x6_tn")):
        trace.slice("cpu_op", "aten::mm", at, at + 10, args={"Input type": ["float"] * 2})
        trace.kernel(name, at + 10, at + 20, trace.call("cudaLaunchKernel", at + 2, at + 5))
    assert statistics(trace).float32_matrix_s == pytest.approx(10e-6)  # not TF32's


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::"
            "native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, at::native::"
            "binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)>",
            "elementwise_kernel<MulFunctor>",
        ),
        (
            "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)",
            "multi_tensor_apply_kernel<AdamFunctor>",
        ),
        ("void CatArrayBatchedCopy<float, unsigned int, 2>(float*)", "CatArrayBatchedCopy"),
    ],
)
def test_a_kernel_is_named_by_what_it_computes(name: str, short: str) -> None:
    """A third of a step was said to be "gpu_kernel_impl_nocast"."""
    assert short_name(name) == short
