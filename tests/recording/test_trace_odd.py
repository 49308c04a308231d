"""Traces that other profilers, accelerators and tools that merge them write: what they say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_traces import EVERY_BRANCH, HOST, LOADER, TraceBuilder, every_branch
from told_facts import answers, remarked, why_unknown

from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import Report
from torchdoctor.schema.errors import UsageError


def checked(folder: Path, document: Any) -> Report:
    path = folder / "trace.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return trace_checkup([str(path)])


def assert_every_branch(report: Report, steps: int = 4) -> None:
    assert report.trace is not None
    assert report.trace.steps == steps
    for branch, share in EVERY_BRANCH.items():
        assert getattr(report.baseline.shares, branch) == pytest.approx(share, abs=1e-6), branch


@pytest.mark.parametrize("thread", [HOST, 99])
def test_a_step_that_is_annotated_twice_counts_once(tmp_path: Path, thread: int) -> None:
    trace = every_branch(steps=4)
    for number in range(4):
        at = 1000.0 * number
        name = f"ProfilerStep#{number}"
        trace.slice("user_annotation", name, at + 1, at + 999, tid=thread)
    assert_every_branch(checked(tmp_path, trace.document()))


def test_a_mark_around_other_steps_is_no_step(tmp_path: Path) -> None:
    """One such mark swallowed all others, and the report spoke of a step of 0.00 us."""
    trace = every_branch(steps=4)
    trace.step(99, -1, 4001)
    trace.step(100, 999.5, 3000.5)
    report = checked(tmp_path, trace.document())
    assert_every_branch(report)
    assert remarked(report) == {"marks-overlap": {"left_out": 2, "marks": 6}}


def test_steps_without_length_are_none(tmp_path: Path) -> None:
    trace = every_branch(steps=4)
    for event in trace.events:
        if event["name"].startswith("ProfilerStep"):
            event["dur"] = 0
    report = checked(tmp_path, trace.document())
    assert report.trace is not None and report.trace.steps == 0
    assert report.baseline.shares.gpu == pytest.approx(0.4, abs=0.02)
    assert "steps-unknown" in remarked(report)


def test_ranks_that_were_merged_into_one_file_are_refused(tmp_path: Path) -> None:
    """Correlation ids count from the same number in each process."""
    events = []
    for rank in range(2):
        for event in copy.deepcopy(every_branch(steps=4).events):
            if event["pid"] == HOST:
                event["pid"] += rank
            events.append(event)
    with pytest.raises(UsageError, match="2 processes"):
        checked(tmp_path, {"traceEvents": events})


def test_ids_that_are_given_again_launch_what_comes_after(tmp_path: Path) -> None:
    trace, again = every_branch(steps=3), every_branch(steps=3)
    for event in again.events:
        event["ts"] += 1e9
        number = event["name"].partition("#")
        if number[0] == "ProfilerStep":
            event["name"] = f"ProfilerStep#{int(number[2]) + 3}"
    report = checked(tmp_path, {"traceEvents": trace.events + again.events})
    assert_every_branch(report, steps=6)


ACCELERATORS = {
    "xpu": {"cuda_runtime": "xpu_runtime"},
    "mtia": {"cuda_runtime": "mtia_runtime", "kernel": "mtia_ccp_events"},
    "hpu": {"kernel": "hpu_op"},
    "private": {"cuda_runtime": "privateuse1_runtime", "kernel": "privateuse1_kernel"},
    "amd, in capitals": {"cuda_runtime": "HIP_RUNTIME", "kernel": "KERNEL"},
}


@pytest.mark.parametrize("kind", ACCELERATORS)
def test_work_of_other_accelerators_is_the_devices(kind: str, tmp_path: Path) -> None:
    trace = every_branch(steps=4)
    for event in trace.events:
        event["cat"] = ACCELERATORS[kind].get(event.get("cat", ""), event.get("cat", ""))
    report = checked(tmp_path, trace.document())
    assert_every_branch(report)
    assert not report.doubts


def test_events_of_an_unknown_category_are_named(tmp_path: Path) -> None:
    trace = every_branch(steps=4)
    for event in trace.events:
        if event.get("cat") == "kernel":
            event["cat"] = "tpu_op"
    report = checked(tmp_path, trace.document())
    assert remarked(report)["events-unknown"] == {"events": 8, "categories": ["tpu_op"]}


def test_copies_that_are_written_as_kernels_are_copies(tmp_path: Path) -> None:
    trace = every_branch(steps=4)
    for event in trace.events:
        if event.get("cat") in ("gpu_memcpy", "gpu_memset"):
            event["cat"] = "kernel"
    assert_every_branch(checked(tmp_path, trace.document()))


def test_work_that_was_launched_and_not_recorded_is_no_verdict_on_the_cpu(tmp_path: Path) -> None:
    trace = every_branch(steps=4)
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    trace.events = [event for event in trace.events if event.get("cat") not in device]
    report = checked(tmp_path, trace.document())
    assert report.diagnosis.bottleneck == "none"
    assert why_unknown(report) == "device-unseen"
    assert "python-overhead" not in [finding.check for finding in report.diagnosis.findings]
    waiting = TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        waiting.step(number, at, at + 1000)
        waiting.slice("user_annotation", LOADER, at, at + 800)
        waiting.call("cudaLaunchKernel", at + 810, at + 820)
    assert checked(tmp_path, waiting.document()).diagnosis.bottleneck == "data_loader"


def launching(kernels: int, launch: str = "cudaLaunchKernel") -> TraceBuilder:
    """Four steps of twenty launches, a copy, and the kernels of the first so many in each."""
    trace = TraceBuilder()
    for number in range(4):
        at = 1000.0 * number
        trace.step(number, at, at + 1000)
        trace.copy(
            "HtoD (Pageable -> Device)", at + 5, at + 25, trace.call("cudaMemcpyAsync", at, at + 5)
        )
        for launched in range(20):
            start = at + 30 + 48 * launched
            trace.operator("aten::mm", start, start + 20)
            call = trace.call(launch, start + 5, start + 10)
            if launched < kernels:
                trace.kernel("ampere_sgemm_128x64_nn", start + 12, start + 20, call)
    return trace


@pytest.mark.parametrize("launch", ["cudaLaunchKernel", "cudaGraphLaunch", "hipLaunchKernel"])
@pytest.mark.parametrize("kernels", [0, 1])
def test_a_copy_beside_kernels_that_were_not_recorded_makes_no_verdict(
    launch: str, kernels: int, tmp_path: Path
) -> None:
    """One copy made the trace one of a GPU, which waited for the host all the time."""
    report = checked(tmp_path, launching(kernels, launch).document())
    assert report.diagnosis.bottleneck == "none"
    assert why_unknown(report) == "kernels-missing"
    assert remarked(report)["kernels-missing"] == {"missing": 80 - 4 * kernels, "launches": 80}
    assert answers(report.diagnosis)["cpu-execution"] == "not measured"


def test_kernels_that_name_no_launch_are_recorded_all_the_same(tmp_path: Path) -> None:
    trace = launching(20)
    for event in trace.events:
        event.get("args", {}).pop("correlation", None)
    report = checked(tmp_path, trace.document())
    assert report.diagnosis.bottleneck == "cpu"


def cut_before_device_events(trace: TraceBuilder, kept: float, **metadata: Any) -> str:
    """The text of a trace as the profiler orders it, the host first, cut in its GPU events."""
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    trace.events = [event for event in trace.events if event["ph"] == "X"]
    trace.events.sort(key=lambda event: event["cat"] in device)
    held = [event["cat"] in device for event in trace.events]
    events = trace.events[: held.index(True) + int(kept * sum(held)) + 1]
    text = json.dumps({**metadata, "traceEvents": events})
    return text[: -len(json.dumps(events[-1])) // 2]


def test_a_file_that_was_cut_in_its_gpu_events_is_no_verdict_on_the_host(tmp_path: Path) -> None:
    trace = launching(20)
    device = [event for event in trace.events if event.get("cat") == "kernel"]
    rest = [event for event in trace.events if event not in device]
    trace.events = rest + device[::2] + device[1::2]
    report = checked(tmp_path, cut_before_device_events(trace, 0.4))
    assert "file-ends-within-event" in remarked(report)
    assert report.diagnosis.bottleneck == "none"
    assert why_unknown(report) == "cut-within-device"


def test_a_cut_that_leaves_whole_steps_leaves_their_diagnosis(tmp_path: Path) -> None:
    report = checked(tmp_path, launching(20).text().decode()[:-300])
    assert "file-ends-within-event" in remarked(report)
    assert report.diagnosis.bottleneck == "cpu"


def test_a_file_that_was_cut_before_any_gpu_event_is_no_verdict_on_the_cpu(tmp_path: Path) -> None:
    report = checked(tmp_path, cut_before_device_events(launching(20), 0.0))
    assert report.diagnosis.bottleneck == "none"
    assert why_unknown(report) == "cut-before-device"
    assert "no-gpu-events" not in remarked(report)
    trace = launching(20)
    trace.events = [e for e in trace.events if e.get("cat") != "cuda_runtime"]
    text = cut_before_device_events(trace, 0.0, deviceProperties=[{"id": 0, "name": "A100"}])
    report = checked(tmp_path, text)
    assert why_unknown(report) == "cut-before-device"


def host_alone(operator: str = "aten::mm") -> TraceBuilder:
    trace = launching(0)
    trace.events = [e for e in trace.events if e.get("cat") in ("user_annotation", "cpu_op")]
    trace.operator(operator, 10, 20)
    trace.events.insert(0, trace.events.pop())
    return trace


def test_what_is_left_of_a_cut_file_tells_that_there_was_a_gpu(tmp_path: Path) -> None:
    """It said "the CPU is the limit" of a trace that was cut before its first driver call."""
    gpus = [{"id": 0, "name": "Tesla V100", "computeMajor": 7, "computeMinor": 0}]
    text = json.dumps({"deviceProperties": gpus, "traceEvents": host_alone().events})
    report = checked(tmp_path, text[:-300])
    assert report.diagnosis.bottleneck == "none"
    assert why_unknown(report) == "cut-before-device"
    assert "no GPU" not in answers(report.diagnosis).values()
    assert report.baseline.shares.cpu is None and report.baseline.shares.other is None
    whole = checked(tmp_path, text)
    assert whole.diagnosis.bottleneck == "cpu"


def test_a_cut_trace_of_a_cpu_stays_one_and_is_not_certain(tmp_path: Path) -> None:
    operator = "aten::_scaled_dot_product_flash_attention_for_cpu"
    text = host_alone(operator).text(metadata={"activities": ["CPU"]}).decode()
    report = checked(tmp_path, text[:-400])
    assert {"file-ends-within-event", "no-gpu-events-in-part"} <= set(remarked(report))
    assert report.diagnosis.bottleneck == "cpu"


@pytest.mark.parametrize(
    "events",
    [
        [{"cat": "blink", "name": "Layout"}],
        [{"cat": "FEE", "name": "main (t.py:3)"}],
        [{"cat": "python_function", "name": "/home/me/train.py(3): step"}],
        [{"ph": "B", "cat": "cpu_op", "name": "aten::mm"}, {"ph": "E"}],
        [{"ph": "M", "name": "process_name"}],
    ],
)
def test_what_no_profiler_of_torch_wrote_is_refused(events: list[dict], tmp_path: Path) -> None:
    """A page of a browser or a Python tracer got a report in which nothing stood out."""
    some = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": 10 * at, "dur": 5, **event}
        for at, event in enumerate(events * 20)
    ]
    with pytest.raises(UsageError, match="no operator"):
        checked(tmp_path, {"traceEvents": some})


@pytest.mark.parametrize("end", [",]", ",\n]", ",", ",\n", ""])
def test_writers_of_a_list_may_leave_a_comma_and_no_bracket(end: str, tmp_path: Path) -> None:
    """Chrome's format allows both, so that a crash leaves a file that can be read."""
    text = json.dumps(every_branch(steps=4).events)
    report = checked(tmp_path, text.removesuffix("]") + end)
    assert_every_branch(report)
    damage = {"events-damaged", "file-too-damaged", "file-damaged-in-compression"}
    assert not damage & set(remarked(report))


def test_copies_by_their_names_in_rocm(tmp_path: Path) -> None:
    trace = every_branch(steps=4)
    for event in trace.events:
        if event.get("cat") == "gpu_memcpy":
            event["name"] = "CopyHostToDevice"
    report = checked(tmp_path, trace.document())
    assert_every_branch(report)
    assert report.trace is not None and report.trace.h2d_bytes == 4096
    assert report.trace.d2h_bytes == 0


def test_ids_may_be_texts(tmp_path: Path) -> None:
    trace = every_branch(steps=4)
    for event in trace.events:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] = str(event["args"]["correlation"])
    report = checked(tmp_path, trace.document())
    assert_every_branch(report)
    assert not report.doubts


def test_that_no_event_names_its_launch_is_a_doubt(tmp_path: Path) -> None:
    trace = every_branch(steps=4)
    for event in trace.events:
        event.get("args", {}).pop("correlation", None)
    report = checked(tmp_path, trace.document())
    assert "launches-unnamed" in remarked(report)


@pytest.mark.parametrize("how", ["negative", "missing", "null", "nan", "text"])
def test_kernels_without_a_duration_are_a_doubt_about_the_gpu(how: str, tmp_path: Path) -> None:
    """Kernels that lacked it took no time, so that the host was blamed, without a word."""
    trace = every_branch(steps=4)
    for event in trace.events:
        if event.get("cat") == "kernel":
            odd = {"negative": -event.pop("dur"), "null": None, "nan": float("nan"), "text": "?"}
            event |= {} if how == "missing" else {"dur": odd[how]}
    report = checked(tmp_path, trace.document())
    lost = remarked(report)["events-without-duration"]
    assert (lost["lost"], lost["on_device"]) == (8, 8)


def test_start_up_is_not_taken_for_training_where_steps_are_unknown(tmp_path: Path) -> None:
    trace = every_branch(steps=4)
    trace.events = [e for e in trace.events if not e["name"].startswith("ProfilerStep")]
    trace.call("cudaFree", -300_000, -100_000)
    report = checked(tmp_path, trace.document())
    start_up = remarked(report)["start-up-left-out"]
    assert start_up["most_in"] == "cudaFree"
    assert start_up["left_out_s"] == pytest.approx(0.2)


def test_a_trace_that_shows_no_time_does_not_say_that_all_is_even(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 5, "dur": 0}
    report = checked(tmp_path, {"traceEvents": [event]})
    assert report.diagnosis.verdict.kind == "no_time"


@pytest.mark.parametrize("time", [1e18, -1e17])
@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.filterwarnings("error")
def test_a_time_that_no_trace_can_span_is_left_out_and_a_doubt(
    time: float, place: int, tmp_path: Path
) -> None:
    """One time of 1e18 printed a warning of numpy, and nothing said that its event was gone."""
    trace = every_branch(4)
    stray = trace.operator("aten::mm", 0, 10)
    stray["ts"] = time
    trace.events.remove(stray)
    trace.events.insert(place, stray)
    report = checked(tmp_path, trace.document())
    assert_every_branch(report)
    assert remarked(report)["events-without-time"]["lost"] == 1
