"""What-ifs against the truth: the same training loop, run without the cost."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from simulated_training import Machine, mean_step_s, trained
from synthetic_traces import TraceBuilder

from torchdoctor.schema import WhatIf
from torchdoctor.trace import what_if as trace_what_if
from torchdoctor.trace.device_order import Cost
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.timeline import build_timeline
from torchdoctor.trace.what_if import COSTS, dependencies, replay, what_if


def gpu_bound_with_hidden_loader(machine: Machine) -> None:
    machine.load(1000)
    for _ in range(20):
        machine.operator(10)
        machine.launch(500)


def loader_before_synchronous_step(machine: Machine) -> None:
    machine.load(3000)
    for _ in range(10):
        machine.launch(500)
    machine.synchronize(7)


def host_and_device_in_turns(machine: Machine) -> None:
    machine.python(5000)
    for _ in range(10):
        machine.launch(500)
    machine.synchronize()


def launch_bound(machine: Machine) -> None:
    machine.load(50)
    for _ in range(200):
        machine.operator(20)
        machine.launch(2)


def copies_that_block(machine: Machine) -> None:
    for _ in range(5):
        machine.launch(800)
    machine.copy(100, "DtoH (Device -> Pageable)", blocking=True)
    for _ in range(100):
        machine.operator(30)


def copies_that_do_not_block(machine: Machine) -> None:
    machine.operator(300)
    machine.copy(700, "HtoD (Pinned -> Device)")
    machine.launch(400)


def backward_on_its_own_thread(machine: Machine) -> None:
    machine.load(800)
    for _ in range(20):
        machine.operator(30)
        machine.launch(10)

    def body(machine: Machine) -> None:
        for _ in range(20):
            machine.operator(40)
            machine.launch(15)

    machine.backward(body)
    machine.synchronize(7)


def collective_on_its_own_stream(machine: Machine) -> None:
    for _ in range(4):
        machine.launch(400)
    machine.wait(20, 7)
    machine.launch(900, stream=20, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    for _ in range(2):
        machine.launch(100)
    machine.wait(7, 20)
    machine.launch(200)


def graphs(machine: Machine) -> None:
    machine.python(100)
    machine.launch(20, count=40)
    machine.synchronize(7)


def many_launches(machine: Machine) -> None:
    for _ in range(1500):
        machine.launch(20)


LOOPS: list[Callable[[Machine], None]] = [
    gpu_bound_with_hidden_loader,
    loader_before_synchronous_step,
    host_and_device_in_turns,
    launch_bound,
    copies_that_block,
    copies_that_do_not_block,
    backward_on_its_own_thread,
    collective_on_its_own_stream,
    graphs,
]


def replayed(body: Callable[[Machine], None], **how: int) -> WhatIf:
    found = what_if(*trained(body, **how))
    assert found is not None
    assert found.replayed_s == pytest.approx(found.measured_s, rel=0.01)
    assert not found.own_delays
    assert found.doubts == []
    return found


@pytest.mark.parametrize("branch", COSTS)
@pytest.mark.parametrize("body", LOOPS, ids=lambda body: body.__name__)
def test_a_cost_gone_is_as_if_it_had_never_been(
    body: Callable[[Machine], None], branch: str
) -> None:
    found = replayed(body)
    truth = mean_step_s(trained(body, without=branch)[1])
    predicted = found.branches[branch]
    if predicted is None:
        assert branch == "communication"
        return
    # A queue's gaps and the profiler's own rounding stay: some microseconds per kernel.
    assert predicted.step_s == pytest.approx(truth, rel=0.02, abs=20e-6)


def test_a_loader_hidden_under_kernels_gains_nothing() -> None:
    assert (replayed(gpu_bound_with_hidden_loader, steps=12).speedup("data_loader") or 0) < 1.01


def test_an_exposed_loader_gains_all_of_its_time() -> None:
    found = replayed(loader_before_synchronous_step)
    without = found.branches["data_loader"]
    assert without is not None
    assert found.measured_s - without.step_s == pytest.approx(3000e-6, rel=0.01)


def test_without_synchronisation_host_and_device_overlap() -> None:
    found = replayed(host_and_device_in_turns, steps=20)
    without = found.branches["runtime"]
    assert without is not None
    assert found.measured_s > 10e-3
    assert without.step_s == pytest.approx(5.3e-3, rel=0.03)


def test_faster_kernels_do_not_help_where_launches_are_the_limit() -> None:
    trace, timeline = trained(launch_bound)
    graph = dependencies(trace, timeline, 0, len(timeline.steps) - 1)
    as_it_is = replay(graph).mean()
    assert replay(graph, {Cost.GPU: 0.5}).mean() == pytest.approx(as_it_is, rel=0.001)


def test_launches_that_wait_for_a_full_queue_follow_the_device() -> None:
    trace, timeline = trained(many_launches, steps=3, queue=1000)
    assert replayed(many_launches, steps=3, queue=1000)
    graph = dependencies(trace, timeline, 0, 2)
    half = replay(graph, {Cost.GPU: 0.5}).mean()
    assert half == pytest.approx(timeline.steps.total / 3 * (10 + 1) / (20 + 1), rel=0.02)


def test_waits_of_unknown_cause_are_kept_and_said() -> None:
    def body(machine: Machine) -> None:
        machine.operator(100)
        machine.launch(500, late=2000)
        machine.synchronize(7)

    found = what_if(*trained(body))
    assert found is not None
    assert found.replayed_s == pytest.approx(found.measured_s, rel=0.01)
    assert found.explained_s == pytest.approx(found.measured_s - 2e-3, rel=0.02)
    without = found.branches["gpu"]
    assert without is not None
    assert without.step_s == pytest.approx(found.measured_s - 500e-6, rel=0.02)
    assert without.lowest_s == pytest.approx(found.measured_s - 2500e-6, rel=0.1)
    assert any(doubt.fact == "waits-unexplained" for doubt in found.doubts)


def test_delays_that_are_not_usual_fall_back_to_those_measured() -> None:
    def body(machine: Machine) -> None:
        for number in range(50):
            machine.launch(20, late=19.0 * (number % 3 > 0))
            machine.synchronize(7)

    found = what_if(*trained(body))
    assert found is not None
    assert found.own_delays
    assert found.replayed_s == pytest.approx(found.measured_s, rel=0.005)
    assert any(doubt.fact == "replayed-with-own-delays" for doubt in found.doubts)


def test_a_long_trace_is_replayed_by_typical_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, timeline = trained(loader_before_synchronous_step, steps=40)
    monkeypatch.setattr(trace_what_if, "_EVENTS", 120)
    found = what_if(trace, timeline)
    assert found is not None
    assert 0 < found.steps < found.of_steps == 40
    assert found.replayed_s == pytest.approx(mean_step_s(timeline), rel=0.01)


def test_work_that_began_before_the_replayed_steps_is_in_their_way() -> None:
    trace, timeline = trained(gpu_bound_with_hidden_loader, steps=8)
    middle = replay(dependencies(trace, timeline, 3, 5)).mean()
    assert middle == pytest.approx(timeline.steps.total / 8, rel=0.02)


def test_unknown_steps_are_said() -> None:
    machine = Machine()
    launch_bound(machine)
    trace = read_trace(io.BytesIO(machine.trace.text()))
    found = what_if(trace, build_timeline(trace))
    assert found is not None
    assert found.steps == 0
    assert any(doubt.fact == "replayed-whole" for doubt in found.doubts)


def test_without_a_gpu_only_the_loader_can_be_taken_away() -> None:
    def body(machine: Machine) -> None:
        machine.load(400)
        machine.operator(600)

    found = replayed(body)
    assert {branch for branch, without in found.branches.items() if without} == {"data_loader"}
    assert found.speedup("data_loader") == pytest.approx(1 / 0.6)


def test_a_step_too_large_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_what_if, "_EVENTS", 10)
    monkeypatch.setattr(trace_what_if, "_EVENTS_OF_ONE_STEP", 10)
    assert what_if(*trained(launch_bound)) is None


@pytest.mark.parametrize("seed", range(30))
def test_any_trace_is_replayed_and_no_cost_removed_makes_it_slower(seed: int) -> None:
    random = np.random.default_rng(seed)
    trace = TraceBuilder(legacy=bool(seed % 3 == 0))
    calls = ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaFree"]
    calls += ["cudaEventSynchronize", "cudaDeviceSynchronize", "cudaStreamWaitEvent", "hipMalloc"]
    for number in range(int(random.integers(0, 4))):
        trace.step(number, number * 1000, number * 1000 + int(random.integers(0, 1100)))
    for _ in range(200):
        at, length = (int(x) for x in random.integers(0, 3000, 2))
        more = {"tid": int(random.integers(1, 4))} if random.random() < 0.5 else {}
        if random.random() < 0.4:
            trace.operator("aten::mm", at, at + length // 20, **more)
            continue
        correlation = trace.call(str(random.choice(calls)), at, at + length // 10)
        trace.events[-1].update(more)
        begin = at + int(random.integers(-50, 500))
        end = begin + int(random.integers(0, 300))
        stream = int(random.integers(-1, 4))
        if random.random() < 0.8:
            known = correlation if random.random() < 0.9 else 0
            trace.kernel("k", begin, end, known, stream=stream)
    read = read_trace(io.BytesIO(trace.text()))
    found = what_if(read, build_timeline(read))
    if found is not None:
        assert np.isfinite(found.replayed_s)
        for without in found.branches.values():
            assert without is None or 0 <= without.lowest_s <= without.step_s <= found.replayed_s
