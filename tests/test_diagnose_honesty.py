"""What `diagnose` may not claim of a trace: time that no event explains, arguments nobody saw."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from compared_pairs import synthetic
from synthetic_traces import TraceBuilder
from told_facts import facts_of

from torchdoctor.reports.wording import step_time
from torchdoctor.runs.traces import trace_checkup


def written(folder: Path, trace) -> Path:
    path = folder / "trace.json"
    path.write_bytes(trace.text())
    return path


_SLEEPER = """
import sys, time, torch
from torch.profiler import ProfilerActivity, profile, schedule

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def wait_for_a_message():
    time.sleep(1.0)  # far more than operators take on a machine that others use


def main():
    plan = schedule(wait=1, warmup=1, active=2)
    stacks = sys.argv[2] == "stacks"
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, with_stack=stacks) as profiler:
        for _ in range(4):
            wait_for_a_message()
            model(torch.randn(32, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(sys.argv[1])


main()
"""


@pytest.mark.parametrize("stacks", ["none", "stacks"])
def test_time_in_no_operator_is_not_said_to_be_the_models(stacks: str, tmp_path: Path) -> None:
    """A step that slept 93 % of itself: "the CPU executes the model 100 %", and a fused AdamW."""
    script, file = tmp_path / "sleeper.py", tmp_path / "trace.json"
    script.write_text(_SLEEPER)
    subprocess.run([sys.executable, script, file, stacks], check=True, capture_output=True)
    report = trace_checkup([str(file)])
    found = report.diagnosis
    assert (found.bottleneck, found.detail) == ("other", "outside-operators")
    assert report.baseline.shares.cpu < 0.3 and report.baseline.shares.other > 0.7
    assert found.verdict.kind == "finding" and found.verdict.proof is not None
    assert found.verdict.proof.check == "outside-operators"
    assert [f.check for f in found.findings] == ["outside-operators"]
    assert report.recommendation.also_offered == []
    if stacks == "stacks":
        place = found.verdict.place
        assert place is not None
        assert (place.file, place.function) == ("sleeper.py", "wait_for_a_message")
        assert found.verdict.proof.facts == ["no-operator", "passes-in"]
    else:
        assert found.verdict.proof.facts == ["no-stacks", "record-stacks"]
        assert "with_stack=True" in found.sentence and "torchdoctor run" in found.sentence


def test_long_stretches_without_operators_are_no_launching_on_a_gpu(tmp_path: Path) -> None:
    trace = synthetic.TraceBuilder()
    for number in range(4):
        at = 10_000.0 * number
        trace.step(number, at, at + 10_000)
        trace.operator("aten::mm", at + 9000, at + 9020)
        launch = trace.call("cudaLaunchKernel", at + 9005, at + 9015)
        trace.kernel("ampere_sgemm_128x64_nn", at + 9015, at + 9900, launch)
    report = trace_checkup([str(written(tmp_path, trace))])
    assert report.diagnosis.bottleneck == "other"
    assert report.recommendation.also_offered == []
    verdict = report.diagnosis.verdict
    assert verdict.proof is not None and verdict.proof.check == "outside-operators"
    assert verdict.share == pytest.approx(0.91)


def test_advice_of_a_trace_invents_no_arguments(tmp_path: Path) -> None:
    """One item had shuffle=True and the next had lost it; workers stood there that nobody saw."""
    trace = synthetic.TraceBuilder()
    for number in range(4):
        at = 10_000.0 * number
        trace.step(number, at, at + 10_000)
        trace.slice("user_annotation", synthetic.LOADER, at, at + 6000)
        trace.operator("aten::mm", at + 6000, at + 9900)
    report = trace_checkup([str(written(tmp_path, trace))])
    assert report.diagnosis.bottleneck == "data_loader"
    code = {fix.fix: fix.instruction for fix in report.recommendation.also_offered}
    assert "DataLoader(..., num_workers=4)" in code["loader-workers"]
    assert "only where to start" in code["loader-workers"]
    assert not {"persistent-workers", "prefetch-factor"} & set(code)
    for text in code.values():
        assert "DataLoader(dataset" not in text and "batch_size=64" not in text


@pytest.mark.parametrize(("last", "both"), [(4_000, True), (1_020, False)])
def test_median_and_mean_of_the_step_are_named_where_they_differ(
    last: float, both: bool, tmp_path: Path
) -> None:
    """It said "step 216 ms" above findings "of a 245.8 ms step"."""
    trace = synthetic.TraceBuilder()
    at = 0.0
    for number, length in enumerate((1_000, 1_000, 1_000, 1_000, last)):
        trace.step(number, at, at + length)
        trace.operator("aten::mm", at, at + length)
        at += length
    text = step_time(trace_checkup([str(written(tmp_path, trace))]))
    assert "1.00 ms" in text
    assert ("1.60 ms" in text) is both


@pytest.mark.parametrize("launched", [True, False])
def test_a_wait_for_work_of_before_the_window_is_no_copy(tmp_path: Path, launched: bool) -> None:
    """Memory copies held up 98 % of the trace: 256 bytes, which waited for what ran before."""
    trace = TraceBuilder()
    if launched:
        launch = trace.call("hipLaunchKernel", 0, 10)
        trace.kernel("Cijk_Ailk_Bljk_SB_MT64x64x8", 20, 99_000, launch)
    copy = trace.call("hipMemcpyWithStream", 30, 99_020)
    trace.copy("DtoH (Device -> Host)", 99_010, 99_015, copy, bytes=256)
    launch = trace.call("hipLaunchKernel", 99_030, 99_040)
    trace.kernel("Cijk_Ailk_Bljk_SB_MT64x64x8", 99_050, 100_000, launch)
    diagnosis = trace_checkup([str(written(tmp_path, trace))]).diagnosis
    rest = diagnosis.verdict.rest
    assert (None if rest is None else rest.why.fact) == (None if launched else "earlier-work")
    assert diagnosis.bottleneck == ("gpu" if launched else "none")


def test_a_loader_that_has_workers_is_not_told_to_use_workers(tmp_path: Path) -> None:
    trace = TraceBuilder()
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for number in range(16):
        at, waits = 1000.0 * number, 10 if number % 4 else 900
        trace.step(number, at, at + 1000)
        trace.slice("user_annotation", name, at, at + waits)
        trace.operator("aten::mm", at + waits, at + 990)
    report = trace_checkup([str(written(tmp_path, trace))])
    [offered] = [x for x in report.recommendation.also_offered if x.fix == "loader-workers"]
    assert "num_workers=8" in (offered.instruction or "")
    assert facts_of(report, "data-wait")["workers-counted"] == {"workers": 4}
