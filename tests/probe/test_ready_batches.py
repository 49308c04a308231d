"""A queue that was filled while nobody took from it hides for a while that its workers are slow."""

from __future__ import annotations

import pytest

from torchdoctor.probe.fixkit.second_loader import ReadyBatches, ready_in


def used_up_after(stock: int, taken_s: float, made_s: float) -> tuple[int, float]:
    """Iterations until a full queue counts as used up, and how full it is then."""
    ready, level = ReadyBatches(stock), float(stock)
    for iteration in range(1, 500):
        level = min(max(level - 1 + taken_s / made_s, 0.0), stock)
        if ready.are_used_up(round(level)):
            return iteration, level
    raise AssertionError("never")


@pytest.mark.parametrize("stock", [4, 8, 16])
def test_slow_workers_are_measured_once_their_queue_ran_dry(stock: int) -> None:
    """After `stock` batches it was still half full, and prefetching looked 2.5 times faster."""
    iterations, level = used_up_after(stock, taken_s=0.02, made_s=0.05)
    assert level < 1 and stock < iterations < 2 * stock + 2


@pytest.mark.parametrize("stock", [4, 16])
def test_workers_that_keep_up_are_not_waited_for(stock: int) -> None:
    iterations, level = used_up_after(stock, taken_s=0.05, made_s=0.02)
    assert level == stock and iterations == stock + 1


def test_a_queue_that_falls_for_ever_is_not_waited_for_for_ever() -> None:
    iterations, _ = used_up_after(64, taken_s=0.99, made_s=1.0)
    assert iterations <= 4 * 64 + 21


def test_a_loader_without_workers_has_nothing_ready() -> None:
    class Inline:
        _num_workers = 0

    assert ready_in(Inline()) is None and ready_in(None) is None
