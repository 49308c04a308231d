"""Clocks of ranks aligned on their collectives, on traces with known clocks and stragglers."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from synthetic_traces import TraceBuilder
from told_facts import facts_of, remarked

from torchdoctor.runs.traces import trace_checkup
from torchdoctor.trace.ranks import Alignment, Collectives, align, collectives
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.timeline import build_timeline

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)"
STEP = 1000.0


def rank_trace(
    late: float,
    clock: float = 0.0,
    *,
    first_step: int = 0,
    steps: int = 4,
    jitter: float = 0.0,
    seed: int = 0,
    kernel: str = REDUCE,
) -> TraceBuilder:
    """Steps with two all-reduces that end together; `late` us after the others it comes to them."""
    chance = random.Random(seed)
    trace = TraceBuilder()
    for number in range(first_step, first_step + steps):
        at = STEP * number + clock
        trace.step(number, at, at + STEP)
        for place, reduce_ends in enumerate((500.0, 950.0)):
            start = at + 450 * place + 20
            came = at + reduce_ends - 150 + late
            launch = trace.call("cudaLaunchKernel", start, start + 5)
            trace.kernel("ampere_sgemm_128x64_nn", start + 10, came, launch)
            call = trace.call("cudaLaunchKernel", start + 6, start + 9)
            end = at + reduce_ends + chance.uniform(-jitter, jitter)
            trace.kernel(kernel, came, end, call, stream=20)
    return trace


def of(trace: TraceBuilder) -> Collectives:
    read = read_trace(io.BytesIO(trace.text()))
    return collectives(read, build_timeline(read))


def aligned(*traces: TraceBuilder, step: float = STEP) -> Alignment | None:
    found = align([of(trace) for trace in traces], step / 1e6)
    return found if isinstance(found, Alignment) else None


def test_offset_waits_and_who_comes_last() -> None:
    found = aligned(rank_trace(0), rank_trace(100, clock=5_000_000.0), rank_trace(20, clock=-300.0))
    assert found is not None
    assert found.collectives == 8
    assert found.offset_s == pytest.approx([0, 5.0, -300e-6], abs=1e-6)
    assert found.wait_s == pytest.approx([200e-6, 0, 160e-6], abs=1e-6)  # two a step
    assert found.last_share == [0, 1, 0]
    assert found.scatter_s < 1e-6


def test_ends_that_scatter_a_little_still_align() -> None:
    found = aligned(rank_trace(0), rank_trace(50, clock=7e6, jitter=20.0, seed=1, steps=20))
    assert found is not None
    assert found.offset_s[1] == pytest.approx(7.0, abs=15e-6)
    assert 0 < found.scatter_s < 20e-6


def test_only_steps_that_all_recorded_count() -> None:
    found = aligned(rank_trace(0, steps=6), rank_trace(0, first_step=4, steps=6, clock=900.0))
    assert found is not None
    assert found.collectives == 4
    assert found.offset_s[1] == pytest.approx(900e-6, abs=1e-6)


def test_traces_that_do_not_belong_together_are_not_aligned() -> None:
    assert aligned(rank_trace(0)) is None
    assert aligned(rank_trace(0), rank_trace(0, first_step=100)) is None
    assert aligned(rank_trace(0), rank_trace(0, kernel=REDUCE.replace("f32", "bf16"))) is None
    assert aligned(rank_trace(0), rank_trace(0, jitter=140.0, seed=3)) is None
    broadcast = "ncclDevKernel_Broadcast_RING_LL(x)"  # may end on one rank long before the other
    assert aligned(rank_trace(0, kernel=broadcast), rank_trace(0, kernel=broadcast)) is None


@pytest.mark.parametrize(
    "kernel", ["ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", "void dpsk::ep::dispatch<8>(x)"]
)
def test_waits_are_aligned_in_all_to_all_as_well(kernel: str) -> None:
    """Only all-reduces were compared, and a rank that waits for nobody was named the slowest."""
    found = aligned(rank_trace(0, kernel=kernel), rank_trace(100, clock=40.0, kernel=kernel))
    assert found is not None
    assert found.wait_s == pytest.approx([200e-6, 0], abs=1e-6)
    assert found.exchange_s == pytest.approx(100e-6, abs=1e-6)
    assert found.last_share == [0, 1]


@pytest.mark.parametrize("kernel", [REDUCE, "gloo:all_reduce"])
def test_collectives_that_overlap_are_waited_in_once(kernel: str) -> None:
    """A step of 106 ms "waits for others 154 ms": the waits of three buckets were added up."""
    traces = []
    for late in (0.0, 500.0):
        trace = TraceBuilder()
        for number in range(4):
            at = STEP * number
            trace.step(number, at, at + STEP)
            trace.operator("aten::mm", at, at + 90)
            for bucket in range(3):
                start, end = at + 100 + 10 * bucket + late, at + 800 + 50 * bucket
                if kernel == REDUCE:
                    call = trace.call("cudaLaunchKernel", at + 80 + bucket, at + 81 + bucket)
                    trace.kernel(kernel, start, end, call, stream=20 + bucket)
                else:
                    trace.slice("user_annotation", kernel, start, end, tid=77 + bucket)
        traces.append(trace)
    found = aligned(*traces)
    assert found is not None and found.collectives == 12
    assert found.wait_s == pytest.approx([520e-6, 0], abs=1e-6)
    assert found.exchange_s == pytest.approx(300e-6, abs=1e-6)


def test_a_wait_ends_with_its_collective() -> None:
    """Where a collective had ended before another rank came, more was waited than it took."""
    traces = []
    for late in (0.0, 500.0):
        trace = rank_trace(0)
        for number in range(4):
            start, end = STEP * number + late + 10, STEP * number + late + 30
            call = trace.call("cudaLaunchKernel", STEP * number, STEP * number + 5)
            trace.kernel("ncclDevKernel_AllGather_RING_LL(x)", start, end, call, stream=21)
        traces.append(trace)
    found = aligned(*traces)
    assert found is not None and found.collectives == 12
    assert found.wait_s == pytest.approx([20e-6, 0], abs=1e-6)


def test_groups_that_not_all_ranks_are_in_are_not_compared() -> None:
    traces = [rank_trace(0), rank_trace(100)]
    for rank, trace in enumerate(traces):
        for event in trace.events:
            if event["name"] == REDUCE and event["ts"] % 1000 < 600:
                event["args"]["Process Group Ranks"] = f"[{rank}, {rank + 2}]"
    found = aligned(*traces)
    assert found is not None
    assert found.collectives == 4


def test_without_steps_nothing_is_aligned() -> None:
    trace = rank_trace(0)
    trace.events = [e for e in trace.events if not e["name"].startswith("ProfilerStep")]
    assert len(of(trace).step) == 0


def test_relative_times_count_from_their_own_base() -> None:
    traces = []
    for base_ns in (1_700_000_000_000_000_000, 1_700_000_002_000_000_000):
        trace = rank_trace(0)
        text = trace.text(baseTimeNanoseconds=base_ns)
        read = read_trace(io.BytesIO(text))
        traces.append(collectives(read, build_timeline(read)))
    found = align(traces, STEP / 1e6)
    assert isinstance(found, Alignment)
    assert found.offset_s[1] == pytest.approx(2.0, abs=1e-5)


def test_the_report_says_who_comes_last_by_aligned_clocks(tmp_path: Path) -> None:
    for rank, (late, clock) in enumerate(((0, 0), (140, 3_000.0))):
        information = {"backend": "nccl", "rank": rank, "world_size": 2}
        text = rank_trace(late, clock).text(distributedInfo=information)
        (tmp_path / f"rank{rank}.json").write_bytes(text)
    report = trace_checkup([str(tmp_path)])
    assert [row.last_share for row in report.ranks] == [0, 1]
    assert [row.wait_s for row in report.ranks] == pytest.approx([280e-6, 0], abs=1e-6)
    clocks = remarked(report)["clocks-aligned"]
    assert clocks["apart_s"] == pytest.approx(3e-3)
    assert clocks["collectives"] == 8
    assert facts_of(report, "rank-imbalance")["last"] == {"last_share": 1.0}


def test_clocks_that_agree_are_no_doubt(tmp_path: Path) -> None:
    for rank in range(2):
        text = rank_trace(0).text(distributedInfo={"rank": rank, "world_size": 2})
        (tmp_path / f"rank{rank}.json").write_bytes(text)
    told = remarked(trace_checkup([str(tmp_path)]))
    assert not {"clocks-aligned", "clocks-not-aligned"} & set(told)


HOST_STEP = 60_000.0


def host_rank(
    late: tuple[float, float],
    clock: float = 0.0,
    jitter: float = 0.0,
    seed: int = 0,
    name: str = "gloo:all_reduce",
) -> TraceBuilder:
    """Six steps of a CPU with an all-reduce each, which ends when the last rank has come to it.

    Args:
        late: when it comes to the all-reduce, in even and in odd steps.
    """
    chance = random.Random(seed)
    trace = TraceBuilder()
    for number in range(6):
        at = HOST_STEP * number + clock
        trace.step(number, at, at + HOST_STEP)
        trace.operator("aten::mm", at, at + 1_000)
        end = at + 55_000 + chance.uniform(-jitter, jitter)
        trace.slice("user_annotation", name, at + late[number % 2], end, tid=77)
    return trace


def written(folder: Path, traces: list[TraceBuilder]) -> list[str]:
    for rank, trace in enumerate(traces):
        information = {"backend": "gloo", "rank": rank, "world_size": len(traces)}
        text = trace.text(distributedInfo=information, deviceProperties=[])
        (folder / f"rank{rank}.json").write_bytes(text)
    return [str(folder)]


@pytest.mark.parametrize("name", ["gloo:all_reduce", "mpi:allreduce", "ucc:reduce_scatter"])
def test_collectives_of_the_host_align_as_well(name: str) -> None:
    """Ends of gloo scatter by milliseconds: threads are woken when data is there."""
    found = aligned(
        host_rank((1_000, 53_000), name=name),
        host_rank((53_000, 1_000), clock=9e6, jitter=2_000, seed=2, name=name),
        step=HOST_STEP,
    )
    assert found is not None
    assert found.collectives == 6
    assert found.offset_s[1] == pytest.approx(9.0, abs=2e-3)
    assert found.wait_s == pytest.approx([26e-3, 26e-3], abs=1.5e-3)
    assert found.last_share == [0.5, 0.5]


def test_waiting_for_a_rank_is_not_called_communication(tmp_path: Path) -> None:
    traces = [host_rank((1_000, 53_000)), host_rank((53_000, 1_000), clock=700.0)]
    report = trace_checkup(written(tmp_path, traces))
    assert [row.wait_s for row in report.ranks] == pytest.approx([26e-3, 26e-3], abs=1e-3)
    assert [row.last_share for row in report.ranks] == [0.5, 0.5]
    assert report.diagnosis.bottleneck == "communication"
    verdict = report.diagnosis.verdict
    assert verdict.kind == "ranks_wait"
    shares = {part.name: part.share for part in verdict.parts}
    assert shares == pytest.approx({"waits": 26 / 60, "exchange": 2 / 60}, abs=2e-3)


def test_ranks_of_different_runs_are_not_compared(tmp_path: Path) -> None:
    hour_us = 3.6e9
    other = host_rank((53_000, 1_000), clock=hour_us, jitter=25_000, seed=5)  # the ends do not fit
    report = trace_checkup(written(tmp_path, [host_rank((1_000, 53_000)), other]))
    assert report.ranks == []
    assert "collectives-apart" in remarked(report)
    assert "shares-of-rank" not in remarked(report)
    assert "rank-imbalance" not in [finding.check for finding in report.diagnosis.findings]


def test_ranks_whose_steps_begin_together_are_one_run_though_nothing_matches(
    tmp_path: Path,
) -> None:
    """Two sampled ranks of one run of 128 were "of different runs"."""
    other = host_rank((53_000, 1_000), jitter=25_000, seed=5)
    report = trace_checkup(written(tmp_path, [host_rank((1_000, 53_000)), other]))
    assert [row.wait_s for row in report.ranks] == [None, None]
    assert "collectives-unmatched" in remarked(report)
    assert not {"collectives-apart", "ranks-repeated"} & set(remarked(report))
    assert report.trace is not None and report.trace.of_traces == 2
    assert report.trace.rank in (0, 1)


def test_that_nothing_aligns_the_ranks_is_a_doubt(tmp_path: Path) -> None:
    traces = [host_rank((1_000, 53_000)), host_rank((53_000, 1_000))]
    for trace in traces:
        trace.events = [e for e in trace.events if not e["name"].startswith("ProfilerStep")]
    report = trace_checkup(written(tmp_path, traces))
    assert [row.wait_s for row in report.ranks] == [None, None]
    assert "clocks-not-aligned" in remarked(report)
