"""The most that a fix is said to gain: no figure that cannot come true, and none for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import partial_recordings
import pytest
import recorded_traces

from torchdoctor.advice import catalogue
from torchdoctor.queries import touched
from torchdoctor.queries.bounds import bound_of
from torchdoctor.schema import Gpu, Interval, Recording, Touched, TraceStatistics, TriedCeiling
from torchdoctor.schema.specs import FixSpec
from torchdoctor.schema.traced import BranchReplay, TracedPart, WhatIf

STEP_S = 0.1
A100 = Gpu(index=0, name="NVIDIA A100-SXM4-40GB", compute_capability="8.0")


def of_trace(has_device: bool = True, **parts: TracedPart) -> Recording:
    """A trace of steps of 100 ms on an A100, or on a CPU, whose parts are these."""
    known = {name.replace("_", " "): own for name, own in parts.items()}
    trace = TraceStatistics(
        path="t",
        steps=4,
        step_s=STEP_S,
        has_device=has_device,
        parts={"loader": TracedPart(seconds=1e-6), **known},
    )
    seen = partial_recordings.recording()
    gpus = [A100] * has_device
    return replace(
        seen,
        steps=None,
        processes=[],
        trace=trace,
        environment=replace(seen.environment, gpus=gpus),
    )


def gain_of(fix: str, seen: Recording) -> float:
    bound = bound_of(catalogue.fixes()[fix].touches(seen), seen.trace)
    assert bound is not None
    return bound.speedup


ON_A_DEVICE = (
    "allocator",
    "attention",
    "channels-last",
    "cudnn-benchmark",
    "device-prefetch",
    "fused-optimizer",
    "mixed-precision",
    "pin-memory",
    "remove-sync",
    "set-to-none",
    "single-precision",
    "tf32",
    "torch-compile",
)


@pytest.mark.parametrize("fix", ON_A_DEVICE)
def test_a_fix_touches_nothing_where_nothing_of_its_kind_was_recorded(fix: str) -> None:
    assert catalogue.fixes()[fix].touches(of_trace()) == []


@pytest.mark.parametrize(
    "fix", ["cpu-bfloat16-products", "mixed-precision", "numa-binding", "channels-last"]
)
def test_the_recorded_machine_counts_and_not_this_one(fix: str) -> None:
    """A MacBook was told of numactl, and any CPU of bfloat16 units."""
    products = of_trace(has_device=False, products=TracedPart(seconds=0.06))
    assert catalogue.fixes()[fix].touches(products) == []


@pytest.mark.parametrize("fix", ["cpu-bfloat16-products", "mixed-precision"])
def test_products_on_a_cpu_with_such_units_leave_what_the_units_take(fix: str) -> None:
    seen = of_trace(has_device=False, products=TracedPart(seconds=0.06))
    seen = replace(seen, environment=replace(seen.environment, cpu_features=["avx512_bf16"]))
    assert gain_of(fix, seen) == pytest.approx(1 / (1 - 0.6 / 2))


@pytest.mark.parametrize(
    "fix",
    [
        "arrow-format",
        "data-access-layer",
        "decoded-cache",
        "fast-storage",
        "gc-freeze",
        "loader-workers",
        "no-grad-evaluation",
        "persistent-workers",
        "prefetch-factor",
    ],
)
def test_what_no_observed_step_holds_is_touched_by_none(fix: str) -> None:
    assert catalogue.fixes()[fix].touches(partial_recordings.recording()) == []


@pytest.mark.parametrize("fix", ["loader-workers", "prefetch-factor", "decoded-cache"])
def test_waits_for_data_bound_what_ends_them(fix: str) -> None:
    waiting = partial_recordings.recording(
        {"steps": {"data_wait_s": 0.003}, "processes": [{"pid": 1}]}
    )
    assert 1 / 0.7 <= gain_of(fix, waiting) < 1.6


def test_a_pageable_copy_becomes_a_pinned_one_at_the_rate_of_the_link() -> None:
    """Pinning was said to gain 50x where copies were nearly all of the step."""
    copies = TracedPart(seconds=0.099, device_s=0.099, bytes=272_000_000)  # 10 ms at 27.2 GB/s
    seen = of_trace(pageable_copies_to_the_device=copies)
    assert gain_of("pin-memory", seen) == pytest.approx(1 / (1 - 0.89))


def test_a_float32_product_becomes_one_of_fewer_bits_at_the_ratio_of_the_data_sheet() -> None:
    seen = of_trace(float32_products=TracedPart(seconds=0.08, device_s=0.08))
    assert gain_of("tf32", seen) == pytest.approx(1 / (1 - 0.8 * 7 / 8))
    assert gain_of("mixed-precision", seen) == pytest.approx(1 / (1 - 0.8 * 15 / 16))


def test_what_else_the_device_does_remains() -> None:
    overlapped = TracedPart(seconds=0.08, device_s=0.08, beside_s=0.09)
    assert gain_of("cudnn-benchmark", of_trace(convolutions=overlapped)) == pytest.approx(1 / 0.9)


def test_convolutions_along_one_side_have_no_other_layout() -> None:
    flat = of_trace(flat_convolutions=TracedPart(seconds=0.02, device_s=0.02))
    assert catalogue.fixes()["channels-last"].touches(flat) == []
    assert gain_of("cudnn-benchmark", flat) == pytest.approx(1.25)


COSTS = [Touched(label="copies", seconds=0.05, of_s=STEP_S, branch="memcpy")]


def replayed(**without_s: float) -> TraceStatistics:
    branches = {name: BranchReplay(step_s=own, lowest_s=own) for name, own in without_s.items()}
    times = {"measured_s": STEP_S, "replayed_s": STEP_S, "explained_s": STEP_S}
    replay = WhatIf(steps=4, of_steps=4, branches=branches, **times)
    return TraceStatistics(path="t", steps=4, step_s=STEP_S, what_if=replay)


def bound(*arguments: Any) -> tuple[float, str]:
    known = bound_of(*arguments)
    assert known is not None
    return round(known.speedup, 3), known.by


def test_where_a_replay_or_an_experiment_says_less_it_is_believed() -> None:
    assert bound(COSTS) == (2.0, "share")
    assert bound(COSTS, replayed(memcpy=0.08)) == (1.25, "replay")
    assert bound(COSTS, replayed(memcpy=0.04)) == (2.0, "share")
    assert bound(COSTS, replayed(gpu=0.09)) == (2.0, "share"), "of another branch"
    gains = Interval(estimate=1.05, low=1.0, high=1.1)
    tried = [
        TriedCeiling(
            ceiling="c", branch="memcpy", removes="copies", speedup=gains, verdict="hidden"
        )
    ]
    assert bound(COSTS, replayed(memcpy=0.08), tried) == (1.1, "experiment")


def test_of_parts_of_several_branches_one_alone_is_hidden() -> None:
    """Without both, what one of them hides may go as well."""
    both = [
        *[Touched(label="dispatch", seconds=0.04, of_s=STEP_S, branch="cpu")],
        *[Touched(label="kernels", seconds=0.03, of_s=STEP_S, branch="gpu")],
    ]
    assert bound(both, replayed(cpu=0.09)) == (1.667, "replay")


def test_where_nearly_nothing_is_left_of_a_step_no_figure_says_how_much() -> None:
    everything = [Touched(label="x", seconds=0.0999, of_s=STEP_S)]
    assert bound_of(everything) is None and bound_of([]) is None and bound_of(None) is None


def test_several_descriptions_are_unknown_where_one_is() -> None:
    assert touched.several(COSTS, None) is None
    assert touched.several(COSTS, []) == COSTS


# Truths by benchmarks/bound_truth.py and the traces' own README: at most so much.
AT_MOST = {
    ("gp100_small_optimizer", "fused-optimizer"): 1.08,
    ("a100_cold_forward", "cudnn-benchmark"): 1.19,
    ("a100_pageable_copies", "pin-memory"): 6.5,
    ("a100_cpu_bound_ddp", "fused-optimizer"): 1.1,
    ("h100_owlv2_data_loader", "loader-workers"): 2.06,
    ("v100_resnet50_workers0", "loader-workers"): 1.51,
    ("mac_pinns", "torch-compile"): 1.45,
}


@pytest.mark.parametrize(("name", "fix"), AT_MOST)
def test_no_bound_of_a_recorded_trace_is_beyond_what_can_come_true(name: str, fix: str) -> None:
    offered = {x.fix: x.bound for x in recorded_traces.report(name).recommendation.also_offered}
    known = offered[fix]
    assert known is not None and 1.01 < known.speedup <= AT_MOST[name, fix]


NOT_OFFERED = {
    "a100_cold_forward": {"channels-last", "mixed-precision", "pin-memory", "fused-optimizer"},
    "a100_idle_model_on_cpu": {
        "channels-last",
        "cpu-bfloat16-products",
        "mixed-precision",
        "numa-binding",
    },
    "cpu_no_products": {
        "cpu-bfloat16-products",
        "mixed-precision",
        "numa-binding",
        "torch-compile",
    },
    "mac_pinns": {"cpu-bfloat16-products", "mixed-precision", "numa-binding", "allocator"},
    "t4_randn_on_host": {
        "cudnn-benchmark",
        "channels-last",
        "mixed-precision",
        "tf32",
        "torch-compile",
    },
    "gp100_small_optimizer": {"pin-memory", "mixed-precision", "allocator"},
}


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_what_touches_nothing_of_a_recorded_trace_is_not_offered(name: str) -> None:
    offered = {fix.fix for fix in recorded_traces.report(name).recommendation.also_offered}
    assert not offered & NOT_OFFERED[name]


@pytest.mark.parametrize("fix", catalogue.fixes())
def test_each_fix_tells_what_it_touches_or_why_no_bound_can_be_told(fix: str) -> None:
    spec = catalogue.fixes()[fix]
    tells = spec.touches is not FixSpec.__dataclass_fields__["touches"].default
    assert tells != bool(spec.unbounded)
    assert not spec.unbounded or spec.unbounded.endswith(".")
    if spec.unbounded:
        assert bound_of(spec.touches(of_trace()), None) is None


ON_CPU: dict[str, Any] = {"environment": {"cpu_features": ["avx2"]}, "processes": [{"pid": 1}]}
IDLE_CPU = {**ON_CPU, "trace": {"path": "t", "steps": 4, "step_s": 0.01, "compute_s": 0.0}}
NOT_A_PRODUCT = {
    **ON_CPU,
    "trace": {"path": "t", "steps": 4, "step_s": 0.01, "parts": {"x": {"seconds": 0.001}}},
}
LAUNCHES_NOTHING = {
    "steps": None,
    "trace": {
        "path": "t",
        "steps": 4,
        "step_s": 0.01,
        "has_device": True,
        "platform": "cuda",
        "communication_s": 0.0,
        "parts": {"loader": {"seconds": 1e-6}},
    },
}
# A recording that has nothing for the fix to work on, or that it refuses: it must not appear there.
NOTHING_FOR: dict[str, dict[str, Any]] = {
    **dict.fromkeys(ON_A_DEVICE, LAUNCHES_NOTHING),
    **dict.fromkeys(
        ("conv-bias-off", "cuda-graphs", "nccl-backend", "sparse-embedding"), LAUNCHES_NOTHING
    ),
    **dict.fromkeys(("cpu-simd", "cpu-threads", "use-the-gpu"), IDLE_CPU),
    **dict.fromkeys(("cpu-bfloat16-products", "numa-binding"), NOT_A_PRODUCT),
}


@pytest.mark.parametrize("fix", catalogue.fixes())
def test_each_fix_has_a_recording_in_which_it_must_not_appear(fix: str) -> None:
    spec = catalogue.fixes()[fix]
    seen = partial_recordings.recording(NOTHING_FOR.get(fix, {}))
    touched_there = spec.touches(seen)
    assert spec.refusal(seen) is not None or (touched_there is not None and not touched_there)
    if fix in NOTHING_FOR:
        assert touched_there == []
    assert not touched_there


def of_operators(**trace: Any) -> Recording:
    """A program of steps of 10 ms on a CPU with eight cores, and the trace of four of them."""
    given = {"path": "t", "steps": 4, "step_s": 0.01, **trace}
    return partial_recordings.recording(
        {
            "steps": {"forward_s": 0.009, "optimizer_s": 0.001},
            "processes": [{"pid": 1, "flags": {"num_threads": 1}}],
            "trace": given,
        }
    )


def test_threads_gain_nothing_where_a_step_sleeps_or_waits() -> None:
    """A step that slept in its forward pass was expected to gain 1.13x from other threads."""
    asleep = of_operators(compute_s=0.0004, small_operator_s=0.0001, outside_s=0.0095)
    assert gain_of("cpu-threads", asleep) < 1.06
    assert catalogue.fixes()["cpu-threads"].touches(of_operators(compute_s=0.0)) == []
    computing = of_operators(compute_s=0.008, small_operator_s=0.0)
    assert gain_of("cpu-threads", computing) == pytest.approx(1 / (1 - 0.8 * 7 / 8))


def test_a_graph_of_launches_leaves_what_the_device_does() -> None:
    launches = TracedPart(seconds=0.07, beside_s=0.06)
    assert gain_of("cuda-graphs", of_trace(launches=launches)) == pytest.approx(1 / 0.6)


def test_tensors_drawn_on_the_host_cost_their_drawing_and_their_copies() -> None:
    drawn = TracedPart(seconds=0.03)
    copied = TracedPart(seconds=0.01, device_s=0.01)
    seen = of_trace(random_numbers=drawn, copies_to_the_device=copied)
    assert gain_of("tensor-on-device", seen) == pytest.approx(1 / 0.6)
    assert catalogue.fixes()["tensor-on-device"].touches(of_trace()) is None, "made by other means"


def of_lines(text: str, share: float) -> Recording:
    """A CPU's step of 100 ms, of which samples show this share at such a line."""
    at = {"file": "/w/train.py", "function": "batch"}
    count = round(1000 * share)
    stacks = [
        {"location": {**at, "line": 9}, "text": text, "phase": "other", "count": count},
        {"location": {**at, "line": 3}, "text": "step()", "phase": "other", "count": 1000 - count},
    ]
    processes = [{"pid": 1, "stacks": stacks}]
    return partial_recordings.recording({"steps": {"mean_s": 0.1}, "processes": processes})


def test_what_moves_memory_gains_more_than_its_own_lines() -> None:
    """9.35x stood beside "explains 3.92x": without the reads the rest took half of its time.

    496x stood beside 5.71x: copies of 100 MB were given back as the function returned.
    """
    reads = of_lines("shard = torch.load(path)", 0.745)
    assert gain_of("keep-open", reads) == pytest.approx(7.2, abs=0.1)
    copies = of_lines("kept = table.clone()", 0.5)
    lines, given_back, rest = catalogue.fixes()["read-without-copy"].touches(copies) or []
    assert (lines.saved_share, given_back.saved_share) == pytest.approx((0.5, 0.2))
    assert 0 < rest.saved_share < 0.3
    nearly_all = of_lines("kept = table.clone()", 0.73)
    assert bound_of(catalogue.fixes()["read-without-copy"].touches(nearly_all)) is None
    few = of_lines("kept = table.clone()", 0.1)
    assert gain_of("read-without-copy", few) < 1.19, "caches are full of the rest itself"
