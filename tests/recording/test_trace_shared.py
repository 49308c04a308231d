"""Real traces with known shares. They are no part of the project: the tests skip without them."""

from __future__ import annotations

import pytest
from recorded_traces import statistics

pytestmark = pytest.mark.xdist_group("traces")  # which are read once

# Published shares in percent, computed with the TensorBoard plugin's rules: step in us, kernels
# (collectives among them), memcpy, runtime, data loader, CPU, other.
KNOWN = {
    "v100_resnet50_workers0": (177592, 55.51, 1.08, 1.64, 33.37, 7.70, 0.65),
    "v100_resnet50_workers4": (141068, 70.28, 2.24, 7.49, 0.84, 16.07, 3.01),
    "v100_memcpy_second": (124086, 83.44, 12.82, 1.87, 0.02, 1.72, 0.02),
    "a100_blocking_memcpy": (245845, 32.24, 3.39, 52.37, 0, 11.00, 0.92),
    "a100_cpu_bound_ddp": (222368, 23.27, 0.29, 4.52, 0, 71.62, 0.10),
    "h100_owlv2_data_loader": (1211182, 45.53, 1.20, 0.79, 51.11, 0.60, 0.70),
    "h100_bert_launch_bound": (4426, 6.94, 0.05, 8.60, 0, 35.88, 48.53),
}


@pytest.mark.parametrize("name", KNOWN)
def test_published_shares(name: str) -> None:
    found = statistics(name)
    step_us, kernel, *rest = KNOWN[name]
    shares = found.shares
    assert found.step_s is not None
    assert found.step_s * 1e6 == pytest.approx(step_us, abs=1)
    assert shares.gpu is not None
    assert shares.communication is not None
    assert 100 * (shares.gpu + shares.communication) == pytest.approx(kernel, abs=0.15)
    others = (shares.memcpy, shares.runtime, shares.data_loader, shares.cpu, shares.other)
    assert [100 * (share or 0) for share in others] == pytest.approx(rest, abs=0.15)
    every = (shares.gpu, shares.communication, shares.memset, *others)
    assert sum(share or 0 for share in every) == pytest.approx(1.0)
    assert found.doubts == []


def test_pageable_copies_that_hold_the_host() -> None:
    found = statistics("v100_resnet50_workers4")
    assert found.pageable_copies == 2
    assert found.blocking_copy_s == pytest.approx(0.0093, abs=0.001)
    assert found.blocking_copy_exposed_s == pytest.approx(0.0063, abs=0.0005)


def test_copies_that_block_the_host() -> None:
    found = statistics("a100_blocking_memcpy")
    assert found.blocking_copy_s is not None
    assert found.blocking_copy_s * found.steps == pytest.approx(0.767, abs=0.02)
    # Nearly all of it waits while results are read back; batches come from pinned memory.
    assert found.d2h_copies == pytest.approx(6, abs=1)
    assert found.d2h_wait_s == pytest.approx(found.blocking_copy_s, rel=0.01)
    assert found.pageable_wait_s is not None and found.pageable_wait_s < 0.001
    # By the union of the raw intervals; kernels run in the rest.
    assert found.blocking_copy_exposed_s == pytest.approx(0.0928, abs=0.002)


def test_collectives_by_kernel_name() -> None:
    found = statistics("v100_memcpy_second")
    assert found.communication_s is not None
    assert found.communication_exposed_s is not None
    assert 0 < found.communication_exposed_s < found.communication_s


def test_a_root_that_is_a_list() -> None:
    found = statistics("v100_resnet50_list_root")
    assert found.steps == 6
    assert (found.shares.data_loader or 0) > 0.2


def test_unknown_steps_are_said_and_answered() -> None:
    found = statistics("v100_resnet50_no_steps")
    assert found.steps == 0
    assert found.shares.gpu is not None
    assert any(doubt.fact == "steps-unknown" for doubt in found.doubts)


def test_no_gpu_is_said() -> None:
    found = statistics("cpu_only")
    assert not found.has_device
    assert found.shares.gpu is None
    assert found.steps == 5
    assert any(doubt.fact == "no-gpu-events" for doubt in found.doubts)


# "The measured step" of the traces that have steps.
WITH_STEPS = [*KNOWN, "v100_resnet50_list_root", "cpu_only"]


@pytest.mark.parametrize("name", WITH_STEPS)
def test_the_replay_with_nothing_taken_away_is_the_measured_step(name: str) -> None:
    found = statistics(name)
    replayed = found.what_if
    assert replayed is not None
    assert replayed.steps == replayed.of_steps == found.steps
    assert replayed.measured_s == pytest.approx(found.step_s)
    assert replayed.replayed_s == pytest.approx(replayed.measured_s, rel=0.02)
    assert not replayed.own_delays  # usual delays suffice, so this is no tautology


@pytest.mark.parametrize("name", [name for name in WITH_STEPS if name != "a100_blocking_memcpy"])
def test_what_the_trace_shows_explains_its_steps(name: str) -> None:
    replayed = statistics(name).what_if
    assert replayed is not None
    assert replayed.explained_s == pytest.approx(replayed.measured_s, rel=0.02)
    assert replayed.doubts == []


def test_idle_devices_for_no_visible_reason_are_said() -> None:
    """In the middle of a full queue the device stands still for 64 ms a step."""
    replayed = statistics("a100_blocking_memcpy").what_if
    assert replayed is not None
    assert replayed.explained_s < 0.6 * replayed.measured_s
    assert any(doubt.fact == "waits-unexplained" for doubt in replayed.doubts)


@pytest.mark.parametrize(
    ("name", "branch", "low", "high"),
    [
        ("v100_resnet50_workers0", "data_loader", 1.45, 1.55),
        ("h100_owlv2_data_loader", "data_loader", 2.0, 2.1),
        ("v100_resnet50_workers4", "data_loader", 1.0, 1.02),
        ("a100_cpu_bound_ddp", "cpu", 4.0, 5.0),
        ("a100_cpu_bound_ddp", "gpu", 1.0, 1.01),
        ("h100_bert_launch_bound", "cpu", 8.0, 14.0),
        ("h100_bert_launch_bound", "gpu", 1.0, 1.01),
        ("v100_memcpy_second", "gpu", 1.3, 1.6),
        ("v100_memcpy_second", "memcpy", 1.05, 1.15),
    ],
)
def test_the_known_bottleneck_is_where_the_gain_is(
    name: str, branch: str, low: float, high: float
) -> None:
    replayed = statistics(name).what_if
    assert replayed is not None
    assert low <= (replayed.speedup(branch) or 0) <= high


@pytest.mark.parametrize(
    ("name", "share"), [("v100_resnet50_workers0", 0.279), ("v100_resnet50_workers4", 0.351)]
)
def test_resnet50_computes_what_is_known_of_it(name: str, share: float) -> None:
    """4.09 G multiplications an image, three times less the first layer's gradient, batch 32."""
    work = statistics(name).matrix_work
    assert work is not None
    expected = 2 * 32 * (3 * 4.089e9 - 0.118e9)
    assert work.flops == pytest.approx(expected, rel=0.002)
    assert (work.known_share, work.gpu) == (1.0, "V100 SXM2")
    assert work.mfu == pytest.approx(share, abs=0.001)
    assert 0.5 < (work.peak_share or 0) < 1.0
    assert {one.precision for one in work.products} == {"float32"}
    assert (work.compute_bound_s or 0) > 0.9 * work.device_s


def test_the_oldest_traces_have_flops_and_no_gpu_name() -> None:
    work = statistics("v100_resnet50_list_root").matrix_work
    assert work is not None
    assert work.flops == pytest.approx(777.6e9, rel=0.001)
    assert work.mfu is None


def test_sizes_that_forced_kernels_for_unaligned_rows() -> None:
    """Their kernels are named ..._align1: 5185 tokens in the attention of owlv2."""
    work = statistics("h100_owlv2_data_loader").matrix_work
    assert work is not None
    first, second = work.products[:2]
    sizes = [[(one.dimension, one.size) for one in each.uneven] for each in (first, second)]
    assert sizes == [[("columns", 5185)], [("inner", 5185)]]
    assert first.device_s + second.device_s == pytest.approx(0.2293, abs=0.001)
    assert max(first.peak_share or 1, second.peak_share or 1) < 0.07
    assert all(not one.uneven for one in work.products if (one.peak_share or 0) > 0.5)
    assert first.location is not None
    assert first.location.file.endswith("pipeline/model.py")


def test_a_vocabulary_that_is_no_multiple_of_eight() -> None:
    """Its kernel is named ..._align2."""
    work = statistics("h100_bert_launch_bound").matrix_work
    assert work is not None
    uneven = [size for one in work.products for size in one.uneven if size.multiple == 8]
    assert [(one.dimension, one.size) for one in uneven] == [("columns", 30522)]


@pytest.mark.parametrize("name", ["a100_blocking_memcpy", "v100_memcpy_second"])
def test_mfu_is_not_measured_where_graphs_hide_the_products(name: str) -> None:
    work = statistics(name).matrix_work
    assert work is not None
    assert work.known_share < 0.2
    assert work.mfu is None
    assert all((one.peak_share or 0) < 1.05 for one in work.products)


def test_no_sizes_no_arithmetic() -> None:
    assert statistics("a100_cpu_bound_ddp").matrix_work is None


def test_the_residual_blocks_of_resnet50_are_chains() -> None:
    """Each of 16 blocks ends with an addition and a ReLU, 15 of them have another after them."""
    found = statistics("v100_resnet50_workers0").pointwise
    assert found is not None
    by_operators = {tuple(one.operators): one.times_per_step for one in found.costliest}
    assert by_operators["aten::add_", "aten::clamp_min"] == 16
    assert by_operators["aten::add", "aten::add_", "aten::threshold_backward"] == 15
    assert 0 < found.saved_s < found.device_s == pytest.approx(0.0118, abs=0.0001)


def test_an_activation_written_out_is_a_chain() -> None:
    """x * sigmoid(1.702 x), in five batches of 36 layers."""
    found = statistics("h100_owlv2_data_loader").pointwise
    assert found is not None
    first = found.costliest[0]
    assert first.operators == ["aten::mul", "aten::sigmoid", "aten::mul"]
    assert first.times_per_step == 180
    assert first.location is not None
