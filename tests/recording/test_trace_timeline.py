"""Steps and exposed time on traces made of known intervals."""

from __future__ import annotations

import io

import pytest
from synthetic_traces import EVERY_BRANCH, LOADER, TraceBuilder, every_branch

from torchdoctor.trace.columns import named
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise
from torchdoctor.trace.timeline import Timeline, build_timeline


def timeline(builder: TraceBuilder) -> Timeline:
    return build_timeline(read_trace(io.BytesIO(builder.text())))


def spans(builder: TraceBuilder) -> list[tuple[float, float]]:
    """Steps in microseconds since the first event's base."""
    trace = read_trace(io.BytesIO(builder.text()))
    steps = build_timeline(trace).steps
    shift = trace.base_us - builder.base
    ends = zip(steps.start, steps.end, strict=True)
    return [(float(a) / 1e3 + shift, float(b) / 1e3 + shift) for a, b in ends]


@pytest.mark.parametrize("how", [{}, {"legacy": True}, {"device": 3}])
def test_every_branch_in_every_step(how: dict) -> None:
    found = timeline(every_branch(**how))
    assert len(found.steps) == 3
    for branch, expected in EVERY_BRANCH.items():
        assert found.exposed[branch].tolist() == [round(expected * 1e6)] * 3, branch
        assert found.share(branch) == pytest.approx(expected)


def launched(trace: TraceBuilder, at: float, start: float, end: float, name: str = "k") -> None:
    trace.kernel(name, start, end, trace.call("cudaLaunchKernel", at, at + 5))


def test_a_step_ends_with_the_last_device_event_launched_in_it() -> None:
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    launched(trace, 50, 60, 130)
    trace.step(2, 100, 200)
    launched(trace, 150, 160, 260)
    assert spans(trace) == [(0, 130), (130, 260)]


def test_a_step_without_device_events_keeps_the_order() -> None:
    trace = TraceBuilder()
    for number in range(3):
        trace.step(number, number * 100, number * 100 + 100)
    launched(trace, 50, 60, 250)
    launched(trace, 220, 260, 280)
    assert spans(trace) == [(0, 250), (250, 250), (250, 300)]


def test_trailing_steps_without_or_with_few_device_events_are_dropped() -> None:
    trace = TraceBuilder()
    for number in range(4):
        trace.step(number, number * 100, number * 100 + 100)
    for number, kernels in ((0, 5), (1, 5), (2, 3)):
        for k in range(kernels):
            at = number * 100 + k * 10
            launched(trace, at, at + 1, at + 9)
    assert spans(trace) == [(0, 100), (100, 200)]
    assert any(
        doubt.values == {"left_out": 2, "steps": 4} for doubt in timeline(trace).steps.doubts
    )


def test_eighty_percent_of_the_device_events_are_enough() -> None:
    trace = TraceBuilder()
    for number in range(2):
        trace.step(number, number * 100, number * 100 + 100)
        for k in range(5 - number):
            at = number * 100 + k * 10
            launched(trace, at, at + 1, at + 9)
    assert len(timeline(trace).steps) == 2


def test_work_of_before_the_first_step_delays_its_start() -> None:
    trace = TraceBuilder()
    launched(trace, -50, 10, 30, "left over")
    trace.step(1, 0, 100)
    launched(trace, 40, 50, 90)
    assert spans(trace) == [(30, 100)]


def test_steps_repeated_on_the_gpu_track_count_once() -> None:
    trace = every_branch()
    for number in range(3):
        at = number * 1000
        trace.on_device("gpu_user_annotation", f"ProfilerStep#{number}", at + 9, at + 600)
    assert len(timeline(trace).steps) == 3


def test_without_annotations_the_whole_trace_is_one_span() -> None:
    trace = TraceBuilder()
    trace.operator("aten::mm", 0, 40)
    launched(trace, 10, 20, 100)
    found = timeline(trace)
    assert not found.steps.known
    assert found.share("gpu") == pytest.approx(0.8)
    assert found.share("cpu") == pytest.approx(0.15)  # the launch takes 5 of the other 20
    assert any(doubt.fact == "steps-unknown" for doubt in found.steps.doubts)


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "void rccl_main_kernel<float>()",
    ],
)
def test_collectives_are_known_by_kernel_name(name: str) -> None:
    trace = TraceBuilder()
    trace.step(1, 0, 100)
    launched(trace, 1, 10, 40)
    launched(trace, 6, 30, 90, name)
    found = timeline(trace)
    assert found.exposed["gpu"].tolist() == [30_000]
    assert found.exposed["communication"].tolist() == [50_000]
    assert found.collectives.total == 60_000


def test_the_loader_is_found_as_annotation_as_operator_and_as_data_pipe() -> None:
    for cat in ("user_annotation", "cpu_op"):
        for name in (LOADER, "enumerate(DataPipe)#IterDataPipe"):
            trace = TraceBuilder()
            trace.step(1, 0, 100)
            trace.slice(cat, name, 10, 60)
            trace.operator("aten::stack", 20, 30)
            trace.operator("aten::mm", 60, 100)
            found = timeline(trace)
            assert found.exposed["data_loader"].tolist() == [50_000]
            assert found.exposed["cpu"].tolist() == [40_000]


def test_hip_and_driver_calls_are_runtime() -> None:
    for cat in ("hip_runtime", "cuda_driver", "xpu_runtime", "Runtime"):
        trace = TraceBuilder()
        trace.step(1, 0, 100)
        trace.slice(cat, "launch", 0, 25, args={"correlation": 5})
        trace.kernel("k", 50, 60, 5)
        assert timeline(trace).exposed["runtime"].tolist() == [25_000], cat


def fetched_ahead(marks: bool, optimizer: bool, device: bool) -> TraceBuilder:
    """Steps that compute all the time, while another thread iterates the loader for them."""
    trace, apart = TraceBuilder(), {"tid": 99}
    for number in range(3):
        at = number * 10_000
        if marks:
            trace.step(number, at, at + 10_000)
        trace.operator("aten::mm", at, at + 8_000)
        trace.operator("aten::add_", at + 8_000, at + 10_000)
        if optimizer:
            trace.slice("user_annotation", "Optimizer.step#SGD.step", at + 8_000, at + 10_000)
        trace.slice("user_annotation", LOADER, at + 100, at + 9_000, **apart)
        trace.operator("aten::stack", at + 1_000, at + 8_900, **apart)
        if device:
            launched(trace, at + 10, at + 100, at + 200)
    return trace


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize(("marks", "optimizer"), [(True, True), (False, True), (False, False)])
def test_a_loader_in_a_thread_of_its_own_is_no_wait(
    marks: bool, optimizer: bool, device: bool
) -> None:
    """Training waits for data, it said, of steps that computed all the time."""
    found = summarise(read_trace(io.BytesIO(fetched_ahead(marks, optimizer, device).text())))
    assert found.shares.data_loader == 0
    assert found.shares.cpu and found.shares.cpu > 0.9
    assert "aten::stack" not in [one.name for one in found.operators]
    assert found.operator_calls_per_step == (2 if marks else 6)
    assert found.compute_s == pytest.approx(found.step_s, rel=0.05)


def test_a_loader_in_the_thread_of_the_steps_is_a_wait_whoever_else_works() -> None:
    trace = TraceBuilder()
    for number in range(3):
        at = number * 1000
        trace.slice("user_annotation", LOADER, at, at + 600)
        trace.operator("aten::mm", at + 600, at + 700)
        trace.operator("MmBackward0", at + 700, at + 1000, tid=77)
    assert timeline(trace).share("data_loader") == pytest.approx(0.6)


def test_thousands_of_operator_names_are_not_asked_whether_they_are_kernels() -> None:
    """A trace with 400 000 names of operators took a minute to be searched for collectives."""
    builder = every_branch()
    for number in range(500):
        builder.operator(f"aten::named_{number}", 100, 101)
    trace, asked = read_trace(io.BytesIO(builder.text())), []

    def is_sgemm(name: str) -> bool:
        asked.append(name)
        return "sgemm" in name

    assert named(trace, trace.device, is_sgemm).sum() == 3
    assert len(asked) == len(set(asked)) == len(set(trace.device.name.tolist()))


def optimized(marks: int, begins: float) -> TraceBuilder:
    """Marks of an optimizer 1 ms apart, a kernel in each; cudaFree makes the context before."""
    trace = TraceBuilder()
    trace.call("cudaFree", 0, begins - 1000)
    for number in range(marks):
        at = begins + 1000.0 * number
        launch = trace.call("cudaLaunchKernel", at + 10, at + 15)
        trace.kernel("ampere_sgemm_128x64_nn", at + 100, at + 600, launch)
        trace.slice("user_annotation", "Optimizer.step#SGD.step", at + 900, at + 1000)
    return trace


def test_marks_of_an_optimizer_divide_a_trace_without_steps() -> None:
    steps = timeline(optimized(30, 2000)).steps
    assert steps.known
    assert len(steps) == 29
    assert (steps.end - steps.start == 1_000_000).all()
    assert steps.doubts[0].fact == "steps-by-optimizer" and steps.doubts[0].values["marks"] == 30


def test_the_start_of_cuda_is_left_out_where_steps_are_unknown() -> None:
    """The first fix was another memory allocator."""
    steps = timeline(optimized(3, 200_000)).steps
    assert not steps.known
    assert steps.total == 2_000_000  # without the step that it lies in
    assert steps.doubts[1].fact == "start-up-left-out"
    assert timeline(optimized(3, 2000)).steps.total == 5_000_000
