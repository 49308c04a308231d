"""What public traces that nobody had tuned to taught: each test has the sentence that was wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from compared_pairs import diagnosed
from synthetic_traces import TraceBuilder
from told_facts import facts_of, why_unknown

from torchdoctor.schema import Quote, Report

TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1"


def fixes(report: Report) -> set[str]:
    return {x.fix for x in report.recommendation.also_offered}


def launched(trace: TraceBuilder, name: str, at: float, lasting: float) -> None:
    trace.kernel(name, at + 6, at + 6 + lasting, trace.call("hipLaunchKernel", at, at + 4))


def test_the_capture_of_a_graph_is_no_kernel_that_was_not_recorded(tmp_path: Path) -> None:
    """544 of 546 launches "show no kernel: an older profiler records nothing in CUDA graphs"."""
    trace = TraceBuilder()
    launched(trace, TENSILE, 0, 50)
    trace.call("hipStreamBeginCapture", 100, 110)
    for number in range(60):
        trace.operator("aten::mm", 120 + 10 * number, 128 + 10 * number)
        trace.call("hipLaunchKernel", 122 + 10 * number, 126 + 10 * number)
    trace.call("hipStreamEndCapture", 800, 820)
    launched(trace, TENSILE, 830, 50)
    report = diagnosed(tmp_path, "t.json", trace)
    assert report.diagnosis.bottleneck == "none"
    why = report.diagnosis.verdict.why
    assert why is not None and why.fact == "capturing-graphs"
    assert why.values["part"] == pytest.approx(0.81, abs=0.01)
    assert report.trace is not None and report.trace.what_if is None and not fixes(report)


@pytest.mark.parametrize("warm_ms", [0, 400])
def test_a_window_of_start_up_alone_has_no_usual_step(tmp_path: Path, warm_ms: int) -> None:
    """Two minutes of loading code were "host work", with an allocator and a compiler as cures."""
    trace, at = TraceBuilder(), 0.0
    for number in range(8):
        trace.operator("aten::mm", at, at + 9_500)
        launch = trace.call("hipLaunchKernel", at + 10, at + 9_000)
        trace.kernel(f"kernel_{number}", at + 9_010, at + 9_020, launch)
        at += 10_000
    for _ in range(10 * warm_ms):
        launched(trace, TENSILE, at, 90)
        at += 100
    report = diagnosed(tmp_path, "t.json", trace)
    told = why_unknown(report) == "start-up-mostly"
    assert told is (warm_ms == 0)
    assert not (told and fixes(report))


def test_a_synchronisation_waits_for_a_kernel_that_another_clock_ends_later(tmp_path: Path) -> None:
    """A GPU that computes 88 % was "the limit", and to remove its kernels gained nothing."""
    trace = TraceBuilder()
    trace.step(0, 0, 1_020)
    for number in range(20):
        trace.operator("aten::mm", 25 * number, 25 * number + 12)
        launch = trace.call("hipLaunchKernel", 25 * number + 2, 25 * number + 6)
        trace.kernel(TENSILE, 50 * number + 10, 50 * number + 60, launch)
    trace.call("hipDeviceSynchronize", 520, 1_001)  # the last kernel ends at 1010, by its clock
    report = diagnosed(tmp_path, "t.json", trace)
    assert report.trace is not None and report.trace.what_if is not None
    assert (report.trace.what_if.speedup("gpu") or 0) > 1.7
    verdict = report.diagnosis.verdict
    assert (verdict.kind, verdict.replay) == ("gpu", None), "nothing else limits it"


def test_without_operators_the_thread_of_the_first_call_is_the_loops(tmp_path: Path) -> None:
    """Autograd's thread launched more kernels, so nothing that the loop waited for was replayed."""
    trace = TraceBuilder()
    for number in range(60):
        at = 10.0 * number
        correlation = trace.call("hipLaunchKernel", at, at + 4)
        trace.events[-1]["tid"] = 4321 if number < 20 else 99
        trace.kernel(TENSILE, 20 * number + 10, 20 * number + 30, correlation)
    trace.call("hipDeviceSynchronize", 620, 1_220)
    report = diagnosed(tmp_path, "t.json", trace)
    assert report.trace is not None and report.trace.what_if is not None
    assert (report.trace.what_if.speedup("gpu") or 0) > 1.7


def test_an_idle_gpu_is_one_that_neither_computes_nor_exchanges(tmp_path: Path) -> None:
    """ "GPU idle 83 %" stood beside 15 % communication on that GPU."""
    trace = TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        trace.operator("aten::mm", at, at + 990)
        launched(trace, TENSILE, at + 10, 200)
        launched(trace, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 300, 150)
    report = diagnosed(tmp_path, "t.json", trace)
    [used] = [f for f in report.diagnosis.findings if f.check == "gpu-utilization"]
    [told] = used.evidence
    assert (told.values["busy"], told.share) == pytest.approx((0.2, 0.65))


def test_a_small_part_in_no_operator_is_not_the_verdict_on_the_host(tmp_path: Path) -> None:
    """ "18% of the step lies in no operator" was the answer where operators took 77 %."""
    trace = TraceBuilder()
    for number in range(4):
        at = 10_000.0 * number
        trace.step(number, at, at + 10_000)
        trace.operator("aten::sort", at, at + 8_000)
        launched(trace, TENSILE, at + 8_010, 90)
    verdict = diagnosed(tmp_path, "t.json", trace).diagnosis.verdict
    assert verdict.kind == "cpu"
    [told] = verdict.facts
    assert (told.fact, told.values["name"]) == ("operator-on-host", "aten::sort")


@pytest.mark.parametrize("steps", ["", "Optimizer.step#SGD.step"])
def test_an_optimizer_is_fused_where_one_steps(tmp_path: Path, steps: str) -> None:
    """A backward pass of a benchmark without any optimizer was told to fuse it."""
    trace = TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        for kernel in range(60):
            trace.operator("MmBackward0", at + 16 * kernel, at + 16 * kernel + 14)
            launched(trace, TENSILE, at + 16 * kernel + 2, 1)
        if steps:
            trace.slice("user_annotation", steps, at + 970, at + 990)
    assert ("fused-optimizer" in fixes(diagnosed(tmp_path, "t.json", trace))) is bool(steps)


@pytest.mark.parametrize("region", ["", "Torch-Compiled Region: 0/0"])
def test_a_compiled_model_is_not_told_to_compile(tmp_path: Path, region: str) -> None:
    trace = TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        if region:
            trace.operator(region, at, at + 990)
        for kernel in range(60):
            trace.operator("aten::add_", at + 16 * kernel, at + 16 * kernel + 14)
            launched(trace, "vectorized_elementwise_kernel", at + 16 * kernel + 2, 1)
    assert ("torch-compile" in fixes(diagnosed(tmp_path, "t.json", trace))) is not bool(region)


def test_kernels_whose_names_are_cut_alike_are_told_once(tmp_path: Path) -> None:
    """The same 60 letters stood twice in a list of three, with 29 % and 17 %."""
    trace = TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        launched(trace, f"{TENSILE}_GRVWA8_GRVWB8", at, 500)
        launched(trace, f"{TENSILE}_GRVWA4_GRVWB4", at + 510, 400)
    report = diagnosed(tmp_path, "t.json", trace)
    [kernel] = facts_of(report, "compute")["longest-kernels"]["kernels"]
    assert kernel == {"name": TENSILE[:60], "of_step": pytest.approx(0.9)}


def test_the_first_calls_for_memory_of_an_unmarked_window_are_no_thrashing(tmp_path: Path) -> None:
    """Three first calls of cudaMalloc brought "another memory allocator", 17x at most."""
    trace = TraceBuilder()
    for number in range(3):
        at = 400.0 * number
        trace.operator("aten::mm", at, at + 380)
        trace.call("cudaMalloc", at + 10, at + 240)
        launched(trace, "ampere_sgemm_128x64_nn", at + 250, 120)
    assert "allocator" not in fixes(diagnosed(tmp_path, "t.json", trace))


def test_what_is_promised_is_of_the_fixes_that_are_offered(tmp_path: Path) -> None:
    """ "2.40x at most" stood above fused attention: that was the gain without Python."""
    trace = TraceBuilder()
    for number in range(4):
        at = 10_000.0 * number
        trace.step(number, at, at + 10_000)
        for layer in range(4):
            begin = at + 1_000 * layer
            trace.operator("aten::_softmax", begin, begin + 20)
            launched(trace, "softmax_warp_forward", begin + 2, 500)
            trace.operator("aten::bmm", begin + 500, begin + 520)
            launched(trace, f"{TENSILE}_bmm", begin + 502, 450)
    report = diagnosed(tmp_path, "t.json", trace)
    assert report.diagnosis.verdict.proof == Quote(
        check="outside-operators", facts=["no-stacks", "record-stacks"]
    )
    [share] = [f for f in report.diagnosis.findings if f.check == "gpu-utilization"]
    assert share.fixes == []
