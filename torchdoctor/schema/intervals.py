"""Vectorised arithmetic on sets of half-open time intervals, as (starts, ends) columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals in order of time."""

    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Return the length of all intervals together."""
        return int((self.end - self.start).sum())

    def covered_before(self, times: Ints) -> Ints:
        """Return how much of the time before each of `times` the intervals cover."""
        if not len(self.start):
            return np.zeros(len(times), dtype=np.int64)
        before = np.concatenate(([0], np.cumsum(self.end - self.start)))
        count = np.searchsorted(self.start, times, side="right")
        beyond = np.maximum(self.end[np.maximum(count, 1) - 1] - times, 0)
        return before[count] - np.where(count > 0, beyond, 0)

    def covered(self, start: Ints, end: Ints) -> Ints:
        """Return how much of each span [start, end) the intervals cover; 0 if it is inverted."""
        return self.covered_before(np.maximum(end, start)) - self.covered_before(start)

    def contain(self, times: Ints) -> NDArray[np.bool_]:
        """Return True for each of `times` that lies inside an interval."""
        if not len(self.start):
            return np.zeros(len(times), dtype=bool)
        index = np.searchsorted(self.start, times, side="right") - 1
        return (index >= 0) & (times < self.end[np.maximum(index, 0)])


EMPTY = Intervals(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """Return the union of any intervals; those without length add nothing."""
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(start[first], reach[last])


def join(*sets: Intervals) -> Intervals:
    """Return the union of several sets."""
    return union(
        np.concatenate([s.start for s in sets] or [EMPTY.start]),
        np.concatenate([s.end for s in sets] or [EMPTY.end]),
    )


def subtract(minuend: Intervals, subtrahend: Intervals) -> Intervals:
    """Return what of `minuend` lies outside `subtrahend`."""
    if not len(minuend) or not len(subtrahend):
        return minuend
    gap_start = np.concatenate(([np.iinfo(np.int64).min], subtrahend.end))
    gap_end = np.concatenate((subtrahend.start, [np.iinfo(np.int64).max]))
    return intersect(minuend, Intervals(gap_start, gap_end))


def intersect(first_set: Intervals, second_set: Intervals) -> Intervals:
    """Return the time that both cover."""
    first = np.searchsorted(second_set.end, first_set.start, side="right")
    last = np.searchsorted(second_set.start, first_set.end, side="left")
    count = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(first_set)), count)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    column = first[row] + offset
    return Intervals(
        np.maximum(first_set.start[row], second_set.start[column]),
        np.minimum(first_set.end[row], second_set.end[column]),
    )


def exposed_in_order(start: Ints, end: Ints) -> Ints:
    """Return what each interval adds to the union of those that started before it."""
    order = np.lexsort((-end, start))
    ordered_start = start[order]
    ordered_end = end[order]
    reach = np.maximum.accumulate(ordered_end) if len(order) else ordered_end
    before = np.concatenate((ordered_start[:1], reach[:-1]))
    added = np.maximum(ordered_end - np.maximum(ordered_start, before), 0)
    result: Ints = np.empty_like(added)
    result[order] = added
    return result


def without_gaps(intervals: Intervals, gap: int) -> Intervals:
    """Return the intervals joined across gaps of at most this length."""
    new = np.concatenate(([True], intervals.start[1:] - intervals.end[:-1] > gap))
    last = np.concatenate((new[1:], [True]))
    return Intervals(intervals.start[new], intervals.end[last])
