"""Nesting of operators against a plain stack, and the figures made of it."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import numpy as np
import pytest
from partial_recordings import recording
from synthetic_traces import LOADER, TraceBuilder, every_branch

from torchdoctor.checks import backend_not_nccl
from torchdoctor.schema import TraceStatistics
from torchdoctor.trace.columns import Table
from torchdoctor.trace.nesting import innermost, nest
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise


def statistics(builder: TraceBuilder) -> TraceStatistics:
    return summarise(read_trace(io.BytesIO(builder.text())))


def random_calls(chance: random.Random, start: int, end: int, depth: int = 0) -> list[tuple]:
    """Properly nested (start, end, depth) with siblings that touch and children that fill."""
    calls, at = [], start
    while at < end and depth < 6:
        at += chance.choice([0, 0, 1, 3])
        last = min(end, at + chance.randrange(1, 40))
        if last <= at:
            break
        calls.append((at, last, depth))
        calls += random_calls(chance, at, last, depth + 1) if chance.random() < 0.6 else []
        at = last
    return calls


@pytest.mark.parametrize("seed", range(15))
def test_nesting_against_a_stack(seed: int) -> None:
    chance = random.Random(seed)
    rows = [(t, *call) for t in range(3) for call in random_calls(chance, 0, 300)]
    parents: dict[int, int] = {}
    stacks: dict[int, list[int]] = {}
    for index, (thread, start, _, depth) in enumerate(rows):  # calls come in order of start
        stack = stacks.setdefault(thread, [])
        del stack[depth:]
        parents[index] = stack[-1] if stack else -1
        stack.append(index)
        assert all(rows[row][1] <= start for row in stack)
    order = list(range(len(rows)))
    chance.shuffle(order)
    columns = np.array([rows[index] for index in order], dtype=np.int64)
    thread, start, end = columns[:, 0], columns[:, 1], columns[:, 2]
    table = Table(start, end, np.zeros(len(rows), dtype=np.int64), thread)
    nesting = nest(table)
    # A child that fills its parent exactly may change places with it: compare what is open.
    lengths = end - start
    expected_self = {
        index: rows[index][2]
        - rows[index][1]
        - sum(rows[child][2] - rows[child][1] for child, owner in parents.items() if owner == index)
        for index in range(len(rows))
    }
    found = sorted(zip(start, end, thread, nesting.self_ns, strict=True))
    wanted = sorted((r[1], r[2], r[0], expected_self[i]) for i, r in enumerate(rows))
    assert [tuple(int(v) for v in row) for row in found] == wanted
    assert int(nesting.self_ns.sum()) == sum(
        row[2] - row[1] for index, row in enumerate(rows) if parents[index] == -1
    )
    asked = np.array([chance.randrange(0, 301) for _ in range(200)])
    of = np.array([chance.randrange(0, 4) for _ in range(200)])
    answers = innermost(table, nesting, of, asked)
    for moment, number, answer in zip(asked, of, answers, strict=True):
        around = [
            lengths[row]
            for row in range(len(rows))
            if thread[row] == number and start[row] <= moment < end[row]
        ]
        assert (int(lengths[answer]) if answer >= 0 else None) == min(around, default=None)


def test_nesting_survives_overlaps_and_instants() -> None:
    start, end = np.array([0, 5, 5, 12, 12, 30]), np.array([10, 15, 5, 20, 12, 30])
    zeros = np.zeros(6, dtype=np.int64)
    nesting = nest(Table(start, end, zeros, zeros))
    assert (nesting.self_ns >= 0).all()
    assert len(nest(Table(zeros[:0], zeros[:0], zeros[:0], zeros[:0])).parent) == 0


def test_working_operators_are_counted_and_wrappers_are_not() -> None:
    trace = TraceBuilder()
    for number in range(2):
        at = number * 1000
        trace.step(number, at, at + 1000)
        trace.operator("aten::linear", at + 100, at + 310)  # a wrapper
        trace.operator("aten::addmm", at + 105, at + 305, [[8, 4], [4, 2]])
        trace.operator("aten::expand", at + 110, at + 112)  # inside a working one
        trace.operator("aten::relu", at + 400, at + 420)
        trace.operator("aten::clamp_min", at + 402, at + 418, [[8, 2]])
        trace.slice("user_annotation", LOADER, at + 600, at + 700)
        trace.operator("aten::stack", at + 620, at + 690)  # the loader's, not the model's
    found = statistics(trace)
    assert not found.has_device
    assert found.operator_calls_per_step == 2
    assert found.operator_median_us == pytest.approx((200 + 16) / 2)
    assert found.compute_s == pytest.approx(200e-6)
    assert found.small_operator_s == pytest.approx(16e-6)
    assert found.python_s == pytest.approx((1000 - 210 - 20 - 100) * 1e-6)
    by_name = {operator.name: operator for operator in found.operators}
    assert by_name["aten::addmm"].self_s == pytest.approx(198e-6)
    assert by_name["aten::addmm"].shapes == "[8, 4], [4, 2]"
    assert by_name["aten::linear"].self_s == pytest.approx(10e-6)
    assert by_name["aten::linear"].device_s is None
    assert found.operators[0].name == "aten::addmm"


def test_shares_without_a_gpu() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.slice("user_annotation", LOADER, 0, 250)
    trace.operator("aten::mm", 300, 900)
    found = statistics(trace)
    shares = found.shares
    assert (shares.gpu, shares.memcpy, shares.runtime, shares.communication) == (None,) * 4
    assert shares.data_loader == pytest.approx(0.25)
    assert shares.cpu == pytest.approx(0.75)
    assert shares.other == 0.0
    assert found.kernels_per_step is None
    assert found.sync_s is None
    assert any(doubt.fact == "no-gpu-events" for doubt in found.doubts)


def test_host_collectives_count_where_nothing_computes() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.operator("aten::mm", 0, 500)
    trace.slice("user_annotation", "gloo:all_reduce", 400, 800, tid=77)
    found = statistics(trace)
    assert found.communication_s == pytest.approx(400e-6)
    assert found.communication_exposed_s == pytest.approx(300e-6)
    assert found.shares.communication == pytest.approx(0.3)
    assert found.shares.cpu == pytest.approx(0.7)
    assert found.python_s == pytest.approx(200e-6)


def test_host_collectives_of_a_job_on_gpus_count_where_no_kernel_runs() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.kernel("sgemm", 0, 500, trace.call("cudaLaunchKernel", 0, 10))
    trace.slice("user_annotation", "gloo:all_reduce", 400, 800, tid=77)
    info = {"backend": "gloo", "rank": 0, "world_size": 2}
    found = summarise(read_trace(io.BytesIO(trace.text(distributedInfo=info))))
    assert (found.backend, found.world_size) == ("gloo", 2)
    assert found.host_collective_s == pytest.approx(300e-6)
    [finding] = backend_not_nccl.CHECK.findings(replace(recording({"processes": []}), trace=found))
    assert finding.share_of_step == pytest.approx(0.3)


def test_a_range_around_the_whole_step_is_no_operator() -> None:
    trace = TraceBuilder(legacy=True)
    trace.step(0, 0, 1000)
    trace.operator("train_batch", 10, 990)
    trace.operator("aten::mm", 20, 220)
    found = statistics(trace)
    assert found.operator_calls_per_step == 1
    assert found.compute_s == pytest.approx(200e-6)


def test_device_time_goes_to_the_operator_that_launched_it() -> None:
    found = statistics(every_branch())
    by_name = {operator.name: operator for operator in found.operators}
    # Kernel 400 and, exposed after it, copy 100, memset 20 and collective 80: all launched by mm.
    assert by_name["aten::mm"].device_s == pytest.approx(600e-6)
    assert by_name["aten::add"].device_s == 0.0


def test_what_looks_rows_up_computes_but_is_told_apart() -> None:
    """An embedding bag takes most of the step, and 16-bit units would do nothing for it."""
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    trace.operator("aten::embedding_bag", 0, 400)  # a wrapper
    trace.operator("aten::_embedding_bag", 5, 395)
    trace.operator("aten::addmm", 400, 500)
    trace.operator("aten::index_select", 500, 560)
    trace.operator("aten::index_select", 560, 570)  # a small one
    trace.operator("aten::embedding_dense_backward", 600, 700)
    found = statistics(trace)
    assert found.compute_s == pytest.approx((390 + 100 + 60 + 100) * 1e-6)
    assert found.gather_s == pytest.approx((390 + 60 + 100) * 1e-6)


def test_on_a_gpu_the_kernels_of_a_look_up_are_told_apart() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 1000)
    for number, name in enumerate(("aten::embedding", "aten::mm")):
        at = 10 + number * 100
        trace.operator(name, at, at + 50)
        call = trace.call("cudaLaunchKernel", at + 10, at + 20)
        trace.kernel(f"kernel_{number}", 200 + number * 300, 400 + number * 300, call)
    found = statistics(trace)
    assert found.has_device
    assert found.gather_s == pytest.approx(200e-6)


def test_a_small_operator_that_lost_its_cpu_does_not_compute() -> None:
    trace = TraceBuilder()
    trace.step(0, 0, 10_000)
    for number in range(20):
        at = 100 + number * 400
        trace.operator("aten::mul", at, at + (250 if number == 7 else 2), [[4]])
        trace.operator("aten::addmm", at + 260, at + 330, [[8, 4], [4, 2]])
    trace.operator("aten::mul", 9000, 9300, [[4096, 4096]])  # the same name, but large inputs
    found = statistics(trace)
    assert found.compute_s == pytest.approx((20 * 70 + 300) * 1e-6, rel=0.05)
    assert found.small_operator_s == pytest.approx((19 * 2 + 250) * 1e-6, rel=0.05)


@pytest.mark.parametrize(
    "name, shapes, large",
    [
        ("aten::mm", [[16, 32], [32, 128]], False),
        ("aten::mm", [[256, 512], [512, 512]], True),
        ("aten::_log_softmax", [[64, 4], [], []], False),
        ("aten::mul", [[1000, 1], [1, 1000]], True),
        ("aten::linalg_eigh", [[30, 30]], True),  # elements do not tell
        ("aten::randn", [[], [], []], True),
        ("aten::_foreach_add_", [[[2], [2]], []], True),
    ],
)
def test_what_has_next_to_nothing_to_do_is_not_large(
    name: str, shapes: list[list[int]], large: bool
) -> None:
    """Its threads waited for a core that another program had, every time."""
    builder = TraceBuilder()
    builder.step(0, 0, 1000)
    for start in (0, 200, 400, 600):
        builder.operator(name, start, start + 150, shapes)
    found = statistics(builder)
    assert found.compute_s == pytest.approx(600e-6 if large else 0.0)
    assert found.small_operator_s == pytest.approx(0.0 if large else 600e-6)
