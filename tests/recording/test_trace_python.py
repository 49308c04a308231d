"""Python stacks and driver calls of a trace: whose line, and which call, the host is in."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from synthetic_traces import LOADER, TraceBuilder
from told_facts import facts_of

from torchdoctor.queries.stacks import is_users
from torchdoctor.reports.traced import call_lines, operator_lines
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise


def summary(trace: TraceBuilder):
    return summarise(read_trace(io.BytesIO(trace.text()), "test"))


def frame(trace: TraceBuilder, name: str, start: float, end: float) -> None:
    trace.slice("python_function", name, start, end)


def one_step() -> TraceBuilder:
    """1000 us: 300 wait for a batch, 200 item() waits for a kernel, 100 only Python."""
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    frame(trace, "train.py(10): <module>", 0, 1000)
    frame(trace, "torch/utils/data/dataloader.py(700): __next__", 0, 300)
    frame(trace, "data.py(5): __getitem__", 50, 250)
    frame(trace, "PIL/Image.py(900): convert", 60, 240)
    frame(trace, "train.py(30): log", 600, 1000)
    frame(trace, "<built-in method item>", 600, 900)
    trace.slice("user_annotation", LOADER, 0, 300)
    trace.operator("aten::mm", 300, 500)
    launch = trace.call("cudaLaunchKernel", 310, 320)
    trace.kernel("ampere_sgemm_128x64_nn", 400, 700, launch)
    trace.operator("aten::item", 600, 900)
    trace.operator("aten::_local_scalar_dense", 610, 890)
    trace.call("cudaStreamSynchronize", 620, 880)
    return trace


def test_time_in_a_library_counts_for_the_users_line_above_it() -> None:
    found = {(p.file, p.line): p for p in summary(one_step()).python_places}
    # The dataset's own line, the image library below it included.
    assert found["data.py", 5].data_loader_s == pytest.approx(200e-6)
    # torch's loader around it counts for the loop that asks it.
    assert found["train.py", 10].data_loader_s == pytest.approx(100e-6)
    # What the kernel hides (600 to 700) is nobody's.
    log = found["train.py", 30]
    assert log.runtime_s == pytest.approx(180e-6)
    assert log.other_s == pytest.approx(100e-6)
    assert log.function == "log"


def test_a_waiting_call_is_named_with_its_operator() -> None:
    calls = {(c.name, c.operator): c for c in summary(one_step()).runtime_calls}
    assert calls["cudaStreamSynchronize", "aten::item"].host_s == pytest.approx(260e-6)
    assert calls["cudaLaunchKernel", None].calls_per_step == 1


def test_calls_within_each_other_and_of_several_threads_hold_no_more_than_the_step(
    tmp_path: Path,
) -> None:
    """It said "gif_merge: 843 ms (235 %)" of each step."""
    trace = TraceBuilder()
    for number in range(4):
        at = number * 1000
        trace.step(number, at, at + 1000)
        trace.kernel("k", at + 10, at + 900, trace.call("cudaLaunchKernel", at, at + 10))
        for thread in (4321, 5, 6):
            for start, end in ((100, 900), (150, 850)):  # the second within the first
                trace.slice("mtia_runtime", "merge", at + start, at + end, tid=thread)
                trace.operator("aten::mm", at + 20, at + 980, tid=thread)
    [merge] = [call for call in summary(trace).runtime_calls if call.name == "merge"]
    assert merge.host_s == pytest.approx(2400e-6)
    assert merge.covered_s == pytest.approx(800e-6)
    assert (merge.threads, merge.calls_per_step) == (3, 6)
    file = tmp_path / "t.json"
    file.write_bytes(trace.text())
    report = trace_checkup([str(file)])
    lines = [line for line in call_lines(report.trace, report.trace.step_s) if "merge" in line]
    [line] = [line.replace(" %", "%") for line in lines]
    assert re.findall(r"[\d.]+(?: ms| us|%)", line) == ["800 us", "80%", "2.40 ms"]
    assert "3 threads" in line and "6 calls" in line


def test_operators_of_several_threads_are_no_share_of_the_step(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for thread in range(3):
        trace.operator("aten::mm", 0, 1000, tid=thread)
    file = tmp_path / "t.json"
    file.write_bytes(trace.text())
    trace = trace_checkup([str(file)]).trace
    [line] = operator_lines(trace, trace.step_s)
    assert "aten::mm" in line and "3.00 ms" in line and "3 calls" in line
    assert "%" not in line, "three threads of one step take no 300 % of it"


def test_without_stacks_there_are_no_places() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 100)
    trace.operator("aten::mm", 10, 90)
    assert summary(trace).python_places == []


def test_frames_of_libraries_take_no_memory() -> None:
    """They outnumber everything else in a trace with stacks, and nobody asks for them."""
    trace = one_step()
    for number in range(500):
        trace.slice("python_function", f"torch/nn/modules/module.py({number}): f", number, 990)
    read = read_trace(io.BytesIO(trace.text()))
    assert 0 < len(read.python) < 10
    assert not any("module.py" in name for name in read.names)


def preprocessing(*inside: tuple[str, float, float]) -> TraceBuilder:
    """100 ms: 70 of them in the user's `answer`, which calls a library, then one kernel."""
    trace = TraceBuilder()
    trace.step(0, 0, 100_000)
    frame(trace, "serve.py(8): answer", 0, 99_000)
    frame(trace, "transformers/pipelines/base.py(5): __call__", 10, 70_000)
    for name, start, end in inside:
        frame(trace, name, start, end)
    trace.operator("aten::mm", 70_000, 71_000)
    trace.kernel("gemm_kernel", 71_000, 99_000, trace.call("cudaLaunchKernel", 70_100, 70_200))
    return trace


def test_a_library_that_computes_in_python_is_the_hosts_work_with_its_place(tmp_path: Path) -> None:
    """58 % of a step was "other", though its stacks were in the trace."""
    resize = "transformers/image.py(235): preprocess", 20, 55_000
    trace = preprocessing(resize, ("cv2/video.py(3): decode", 55_000, 69_900))
    (tmp_path / "t.json").write_bytes(trace.text())
    report = trace_checkup([str(tmp_path / "t.json")])
    assert (report.diagnosis.bottleneck, report.diagnosis.detail) == ("cpu", "outside-operators")
    assert report.diagnosis.verdict.share == pytest.approx(0.71)
    facts = facts_of(report, "outside-operators")
    preprocess, decode = facts["python"]["places"]
    assert (preprocess["file"], preprocess["line"]) == ("transformers/image.py", 235)
    assert preprocess["of_step"] == pytest.approx(0.55, abs=0.01)
    assert decode["function"] == "decode"
    [caller] = facts["called-from"]["places"]
    assert (caller["function"], caller["file"], caller["line"]) == ("answer", "serve.py", 8)
    for place in ("transformers/image.py:235", "serve.py:8"):
        assert place in report.diagnosis.sentence


def test_a_sleep_is_no_work_of_python(tmp_path: Path) -> None:
    trace = preprocessing(("<built-in function sleep>", 30, 69_000))
    (tmp_path / "t.json").write_bytes(trace.text())
    assert trace_checkup([str(tmp_path / "t.json")]).diagnosis.bottleneck == "other"


def test_other_threads_frames_are_not_the_loops() -> None:
    trace = one_step()
    trace.slice("python_function", "monitor.py(3): run", 0, 1000, tid=99)
    assert "monitor.py" not in {p.file for p in summary(trace).python_places}


def test_driver_allocations_are_counted_in_the_steps_alone() -> None:
    trace = one_step()
    trace.call("cudaMalloc", 905, 935)
    trace.call("hipFree", 940, 950)
    trace.call("cudaMallocHost", 950, 960)
    trace.call("cudaMallocAsync", 960, 970)
    trace.call("cudaFree", 2000, 2500)  # after the last step
    found = summary(trace)
    assert found.allocations_per_step == 2
    assert found.allocation_s == pytest.approx(40e-6)


def test_a_retry_of_the_allocator_is_told_from_an_emptied_cache() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.operator("aten::mm", 10, 300)
    trace.operator("aten::empty", 20, 200)
    for name, start in (
        ("cudaMalloc", 30),
        ("cudaFree", 60),
        ("cudaFree", 90),
        ("cudaMalloc", 120),
    ):
        trace.call(name, start, start + 20)
    trace.operator("aten::empty", 310, 400)
    trace.call("cudaMalloc", 320, 330)  # growth, not a retry
    trace.call("cudaFree", 500, 600)  # torch.cuda.empty_cache()
    found = summary(trace)
    assert found.allocations_per_step == 6
    assert (found.allocator_retries_per_step, found.releases_per_step) == (1, 1)


@pytest.mark.parametrize(("size", "frees", "off"), [(4096, 1, 20), (None, 1, 20), (None, 0, 0)])
def test_a_caching_allocator_that_is_off_asks_for_each_tensor(size, frees, off) -> None:
    """The advice was a smaller batch, as memory seemed to be full."""
    trace = TraceBuilder()
    trace.step(0, 0, 2000)
    for at in range(0, 2000, 100):
        trace.operator("aten::empty", at, at + 40)
        trace.call("hipMalloc", at + 10, at + 30)
        trace.events[-1]["args"]["bytes"] = size
        trace.call("hipLaunchKernel", at + 42, at + 45)
        for number in range(frees):
            trace.call("hipFree", at + 50 + number, at + 51 + number)
    assert summary(trace).uncached_per_step == off


def test_the_making_of_a_context_is_no_traffic_of_the_allocator() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 500_000)
    trace.call("cudaFree", 10, 300_000)
    trace.call("cudaMalloc", 300_010, 300_200)
    launch = trace.call("cudaLaunchKernel", 400_000, 400_010)
    trace.kernel("ampere_sgemm_128x64_nn", 400_020, 450_000, launch)
    assert summary(trace).allocations_per_step == 1


@pytest.mark.parametrize(
    ("name", "users"),
    [
        ("train.py(3): <module>", True),
        ("/home/me/project/data.py(3): __getitem__", True),
        ("project/models/net.py(3): forward", True),
        ("threading.py(655): wait", False),
        ("torch/nn/modules/module.py(1): _call_impl", False),
        ("/opt/conda/lib/python3.11/site-packages/rich/live.py(3): run", False),
        ("<string>(1): <module>", False),
        ("<built-in method item of Tensor object at 0x7f>", False),
        ("nn.Module: Linear_0", False),
    ],
)
def test_whose_frame_it_is(name: str, users: bool) -> None:
    assert is_users(name) is users
