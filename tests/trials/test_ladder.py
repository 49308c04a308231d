"""Doubling and bisection: as few values as a setting needs, and the best one among them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from torchdoctor.trials.ladder import Ladder, next_value

WORKERS = Ladder(setting="num_workers", least=1, most=64)


def searched(gain: Callable[[int], float], start: int, ladder: Ladder) -> list[int]:
    """Values in the order in which they are tried."""
    gains = {start: gain(start)}
    while (value := next_value(gains, ladder)) is not None:
        assert value not in gains and len(gains) < 20
        gains[value] = gain(value)
    return list(gains)


def test_more_are_tried_as_long_as_they_help() -> None:
    """A loader that waits for a disk: a grid that ends at 8 would never see it."""
    assert searched(lambda n: math.log(n), 2, WORKERS)[:6] == [2, 4, 8, 16, 32, 64]


def test_what_lies_between_the_best_and_its_neighbours_is_tried_too() -> None:
    found = searched(lambda n: -abs(math.log(n / 6)), 2, WORKERS)
    assert found[:3] == [2, 4, 8] and 6 in found and len(found) <= 6


def test_fewer_are_tried_where_more_do_not_help() -> None:
    found = searched(lambda n: -float(n), 8, WORKERS)
    assert found[:2] == [8, 16] and 1 in found


@pytest.mark.parametrize("start", [1, 3, 64])
def test_it_stays_within_its_bounds_and_ends(start: int) -> None:
    for gain in (math.log, lambda n: -math.log(n), lambda n: 0.0):
        found = searched(gain, start, WORKERS)
        assert all(1 <= value <= 64 for value in found)
