"""Interval arithmetic against painting every nanosecond."""

from __future__ import annotations

import numpy as np
import pytest

from torchdoctor.schema.intervals import (
    EMPTY,
    Intervals,
    exposed_in_order,
    intersect,
    join,
    subtract,
    union,
)

SPAN = 200


def random_spans(chance: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    start = chance.integers(0, SPAN - 1, count)
    return start, np.minimum(start + chance.integers(0, 30, count), SPAN)


def painted(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    canvas = np.zeros(SPAN, dtype=bool)
    for first, last in zip(start, end, strict=True):
        canvas[first:last] = True
    return canvas


def paint(intervals: Intervals) -> np.ndarray:
    assert (intervals.end > intervals.start).all()
    assert (intervals.start[1:] >= intervals.end[:-1]).all()
    return painted(intervals.start, intervals.end)


@pytest.mark.parametrize("seed", range(20))
def test_against_painting(seed: int) -> None:
    chance = np.random.default_rng(seed)
    a = random_spans(chance, int(chance.integers(0, 30)))
    b = random_spans(chance, int(chance.integers(0, 30)))
    one, other = union(*a), union(*b)
    assert (paint(one) == painted(*a)).all()
    assert one.total == painted(*a).sum()
    assert (paint(join(one, other)) == (painted(*a) | painted(*b))).all()
    assert (paint(intersect(one, other)) == (painted(*a) & painted(*b))).all()
    assert (paint(subtract(one, other)) == (painted(*a) & ~painted(*b))).all()
    start, end = random_spans(chance, 40)
    covered = [painted(*a)[first:last].sum() for first, last in zip(start, end, strict=True)]
    assert one.covered(start, end).tolist() == covered
    assert one.contain(start).tolist() == painted(*a)[start].tolist()
    assert exposed_in_order(*a).sum() == one.total
    assert (exposed_in_order(*a) <= a[1] - a[0]).all()


def test_nothing_covers_nothing() -> None:
    times = np.array([3, 5])
    assert len(union(times, times)) == 0
    assert EMPTY.covered(times, times + 4).tolist() == [0, 0]
    assert not EMPTY.contain(times).any()
    assert len(subtract(EMPTY, union(times, times + 1))) == 0
    assert len(exposed_in_order(times[:0], times[:0])) == 0


def test_an_inverted_span_has_no_length() -> None:
    assert union(np.array([0]), np.array([9])).covered(np.array([6]), np.array([2])).tolist() == [0]
