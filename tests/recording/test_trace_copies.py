"""Which copies hold the host, and what may be done: on traces of known events."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_traces import TraceBuilder
from told_facts import facts_of

from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import Report

HOST_TO_DEVICE = "HtoD (Pageable -> Device)"
DEVICE_TO_HOST = "DtoH (Device -> Pageable)"


def copying(sides: str, kernel_ends: float, tmp_path: Path) -> Report:
    """Steps of 1 ms whose host is 600 us in one copy; a kernel runs until `kernel_ends`."""
    trace = TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        launch = trace.call("cudaLaunchKernel", at + 10, at + 15)
        trace.kernel("ampere_sgemm_128x64_nn", at + 20, at + kernel_ends, launch)
        copy = trace.call("cudaMemcpyAsync", at + 100, at + 700)
        trace.copy(sides, at + 690, at + 695, copy, bytes=256)
    path = tmp_path / "trace.json"
    path.write_bytes(trace.text())
    return trace_checkup([str(path)])


def offered(report: Report) -> set[str]:
    return {fix.fix for fix in report.recommendation.also_offered}


def test_batches_from_pageable_memory_are_to_be_pinned(tmp_path: Path) -> None:
    report = copying(HOST_TO_DEVICE, 120, tmp_path)
    assert report.diagnosis.bottleneck == "memcpy"
    assert "pageable-copies" in {f.check for f in report.diagnosis.findings}
    assert "pin-memory" in offered(report)
    # Copies that wait were called 68 % of the step that no `.item()` would give back.
    assert "remove-sync" not in offered(report)


def test_results_that_are_read_back_are_waits_that_no_pinning_ends(tmp_path: Path) -> None:
    """The advice was to pin the loader's batches, which were pinned already."""
    report = copying(DEVICE_TO_HOST, 120, tmp_path)
    assert report.diagnosis.bottleneck == "memcpy"
    assert not facts_of(report, "pageable-copies")
    assert "blocked-to-host" in facts_of(report, "memcpy-share")
    waits = facts_of(report, "sync-in-step")["waits-copies"]
    assert (waits["copies"], waits["syncs"]) == (1.0, 0.0)
    assert "pin-memory" not in offered(report)
    assert "remove-sync" in offered(report)


def test_a_copy_that_waits_beside_kernels_is_not_exposed(tmp_path: Path) -> None:
    report = copying(HOST_TO_DEVICE, 600, tmp_path)
    [share] = [q.value for q in report.diagnosis.path if "copy" in q.question]
    # Of the 580 us beyond what queueing a copy costs, 480 lie beside the kernel; 5 are the copy.
    assert share == pytest.approx(0.100, abs=0.006)
    assert report.diagnosis.bottleneck != "memcpy"


@pytest.mark.parametrize(
    ("call", "field"),
    [("cudaMemcpyAsync", "blocking_copy_s"), ("cudaStreamSynchronize", "sync_s")],
)
def test_a_call_that_began_before_the_step_counts_from_its_start(
    call: str, field: str, tmp_path: Path
) -> None:
    """Copies were said to hold 15.7 ms of a step in whose table they took 9."""
    trace = TraceBuilder()
    before = trace.call(call, -5000, 200)
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        launch = trace.call("cudaLaunchKernel", at + 10, at + 15)
        trace.kernel("ampere_sgemm_128x64_nn", at + 20, at + 900, launch)
    if call == "cudaMemcpyAsync":
        trace.copy(DEVICE_TO_HOST, 190, 195, before, bytes=256)
    path = tmp_path / "trace.json"
    path.write_bytes(trace.text())
    statistics = trace_checkup([str(path)]).trace
    assert statistics is not None
    assert getattr(statistics, field) == pytest.approx(200e-6 / 4)
    held = {x.name: x.host_s for x in statistics.runtime_calls}
    assert held[call] == pytest.approx(200e-6 / 4)


READ = "aten::_local_scalar_dense"


@pytest.mark.parametrize("call", ["musaStreamSynchronize", "urQueueFinish", "drvWaitForAll", None])
def test_a_value_that_is_read_is_a_wait_whatever_the_driver_calls_it(
    tmp_path: Path, call: str | None
) -> None:
    trace = TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        launch = trace.call("drvLaunchKernel", at + 10, at + 15)
        trace.kernel("gemm_128x64_nn", at + 20, at + 600, launch)
        trace.operator(READ, at + 100, at + 605)
        if call is not None:
            trace.call(call, at + 102, at + 604)
    path = tmp_path / "trace.json"
    path.write_bytes(trace.text())
    report = trace_checkup([str(path)])
    assert report.trace is not None and report.trace.syncs_per_step == 1.0
    assert report.trace.sync_s == pytest.approx(505e-6, rel=0.01)
    assert "sync-in-step" in {finding.check for finding in report.diagnosis.findings}


def test_a_launch_that_loads_its_code_is_no_part_of_a_usual_step(tmp_path: Path) -> None:
    """A toy that was recorded without warm-up was said to wait for its host for 98 % of a step."""
    trace = TraceBuilder()
    trace.step(0, 0, 9000)
    trace.operator("aten::add_", 90, 6800)
    launch = trace.call("hipLaunchKernel", 100, 6700)
    trace.kernel("Cijk_Ailk_Bljk_SB_MT64x64x8", 6710, 8800, launch)
    path = tmp_path / "trace.json"
    path.write_bytes(trace.text())
    report = trace_checkup([str(path)])
    rest = report.diagnosis.verdict.rest
    assert rest is not None and rest.why.fact == "start-up-within"
    assert rest.why.values["call"] == "hipLaunchKernel"
    assert rest.seconds == pytest.approx(2.4e-3)
    assert report.diagnosis.verdict.share == pytest.approx(0.87, abs=0.005), "of the rest alone"
    for figure in ("hipLaunchKernel", "2.40 ms", "87%"):
        assert figure in report.diagnosis.sentence
    assert report.diagnosis.bottleneck == "none"
    assert report.trace is not None and report.trace.what_if is None
