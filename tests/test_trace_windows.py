"""What a short, cut or unusual window of a trace is said to show: tried on traces made here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from compared_pairs import diagnosed
from synthetic_traces import TraceBuilder

from torchdoctor.reports.vocabulary import of_verdict, vocabulary
from torchdoctor.schema import Report

A100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-PCIE-40GB"}]}


def checks(report: Report) -> set[str]:
    return {finding.check for finding in report.diagnosis.findings}


def offered(report: Report) -> list[str]:
    return [fix.fix for fix in report.recommendation.also_offered]


def on_cpu(*names: str) -> TraceBuilder:
    trace = TraceBuilder()
    for number, name in enumerate(names):
        trace.operator(name, 1000 * number, 1000 * number + 900)
    return trace


def on_gpu(*names: str, kernel: str = "sgemm", calls: int = 1200) -> TraceBuilder:
    """Return calls of 10 us, each with a kernel of 4 us; the last names take a millisecond each."""
    trace = TraceBuilder()
    for number in range(calls):
        at = 10.0 * number
        trace.operator("aten::mm", at, at + 8)
        trace.kernel(kernel, at + 3, at + 7, trace.call("cudaLaunchKernel", at + 1, at + 2))
    for number, name in enumerate(names):
        trace.operator(name, 10.0 * calls + 5000 * number, 10.0 * calls + 5000 * number + 4900)
    return trace


def test_a_listed_gpu_that_did_nothing_is_said_first(tmp_path: Path) -> None:
    """CPU fixes of 8.3x each, and the A100 was not mentioned."""
    report = diagnosed(tmp_path, "t.json", on_cpu(*["aten::mm"] * 5), **A100)
    assert report.trace is not None
    assert report.trace.idle_gpus == ["NVIDIA A100-PCIE-40GB"]
    assert "gpu-left-idle" in checks(report)
    assert [quote.check for quote in report.diagnosis.verdict.opening] == ["gpu-left-idle"]
    assert offered(report)[0] == "use-the-gpu"
    used = diagnosed(tmp_path, "u.json", on_gpu(), **A100)
    assert used.trace is not None and used.trace.idle_gpus == []
    assert "gpu-left-idle" not in checks(used)


def test_few_events_are_a_hint(tmp_path: Path) -> None:
    few, many = (diagnosed(tmp_path, f"{n}.json", on_gpu(calls=n)) for n in (20, 1200))
    assert few.trace is not None and few.diagnosis.verdict.few_events == few.trace.events == 60
    assert many.diagnosis.verdict.few_events is None


def test_next_to_nothing_after_a_start_up_is_no_verdict(tmp_path: Path) -> None:
    """A firm verdict from 188 ms of 43 s."""
    trace = TraceBuilder()
    trace.call("cudaDeviceGetStreamPriorityRange", 0, 40e6)
    for number in range(900):
        at = 40e6 + 10 + 100.0 * number
        trace.operator("aten::mm", at, at + 90)
        trace.kernel("sgemm", at + 20, at + 80, trace.call("cudaLaunchKernel", at + 5, at + 15))
    report = diagnosed(tmp_path, "t.json", trace)
    assert report.trace is not None and report.trace.what_if is None
    assert report.trace.start_up_s > 39 and report.trace.kept_share < 0.01
    assert report.diagnosis.bottleneck == "none"
    assert report.diagnosis.verdict.kind == "start_up"
    assert report.diagnosis.findings == [] and offered(report) == []


def test_a_verdict_names_the_start_up_that_it_leaves_out(tmp_path: Path) -> None:
    """It was "of the trace", of which a part had been left out."""
    report = diagnosed(tmp_path, "t.json", on_gpu())
    assert report.trace is not None
    late = replace(report, trace=replace(report.trace, start_up_s=0.01))
    of_both = [of_verdict(each)["each_step"] for each in (report, late)]
    assert of_both[0] == vocabulary(report)["each_step"] and "start-up" in of_both[1]


def test_random_numbers_that_the_gpu_waits_for_are_named(tmp_path: Path) -> None:
    """torch.compile was the cure for torch.randn on the CPU."""
    trace = on_gpu("aten::normal_", "aten::normal_")
    trace.copy("HtoD (Pageable -> Device)", 30_000, 30_010, bytes=4096)
    report = diagnosed(tmp_path, "t.json", trace)
    assert "random-numbers-on-host" in checks(report)
    assert "tensor-on-device" in offered(report)


def test_an_operator_that_launches_does_not_compute_on_the_cpu(tmp_path: Path) -> None:
    trace = on_gpu("aten::_foreach_mul_")
    trace.call("cudaLaunchKernel", 12_100, 12_105)
    report = diagnosed(tmp_path, "t.json", trace)
    assert report.trace is not None
    outer = next(x for x in report.trace.operators if x.name == "aten::_foreach_mul_")
    assert outer.calling_s == outer.self_s > 0
    assert report.diagnosis.verdict.facts == []


def test_dropout_without_a_backward_pass_is_training_mode(tmp_path: Path) -> None:
    trace = on_cpu("aten::mm", "aten::bernoulli_", "aten::mm")
    trace.operator("aten::dropout", 950, 1950)
    report = diagnosed(tmp_path, "t.json", trace)
    assert "training-mode-left-on" in checks(report)
    assert "eval-mode" in offered(report)
    plain = diagnosed(tmp_path, "p.json", on_cpu("aten::mm", "aten::dropout"))
    assert "training-mode-left-on" not in checks(plain)


def test_a_compiled_program_that_waits_for_launches_is_offered_graphs(tmp_path: Path) -> None:
    report = diagnosed(
        tmp_path, "t.json", on_gpu(kernel="triton_poi_fused_add_0"), **A100, cupti_version=26
    )
    assert "launches-outside-graphs" in checks(report)
    assert "cuda-graphs" in offered(report)
    plain = diagnosed(tmp_path, "p.json", on_gpu(), **A100, cupti_version=26)
    assert "cuda-graphs" not in offered(plain)


def test_waits_and_envelopes_of_other_accelerators_are_no_kernels(tmp_path: Path) -> None:
    """ "event_wait (39 %)" stood among the longest kernels of an MTIA."""
    trace = TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.operator("aten::mm", at, at + 900)
        trace.on_device("mtia_ccp_events", "event_wait", at, at + 500)
        trace.on_device("mtia_ccp_events", "program", at + 500, at + 900, stream=9)
        trace.on_device("mtia_ccp_events", "fc", at + 510, at + 600, stream=9)
        trace.on_device("mtia_ccp_events", "add", at + 700, at + 760, stream=9)
        trace.on_device("mtia_ccp_events", "dma_request", at + 920, at + 930, stream=9)
    report = diagnosed(tmp_path, "t.json", trace)
    assert report.trace is not None
    assert {kernel.name for kernel in report.trace.kernels} == {"fc", "add"}
    assert report.trace.shares.memcpy and report.trace.shares.memcpy > 0
