"""What runs inside which operator, and which call launched what, without a loop over events."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Ints, Table, Trace, once


@dataclass(frozen=True)
class Nesting:
    """One entry per row of the table, in its order."""

    parent: Ints  # row of the enclosing operator on the same thread, or -1
    self_ns: Ints  # duration less that of the operators right inside
    leaves: NDArray[np.bool_]  # encloses no operator
    order: Ints  # rows sorted by thread, then start, the longer one first


def nest(table: Table) -> Nesting:
    """Return the nesting by time on each thread; what overlaps an end counts as nested up to it."""
    order = np.lexsort((-table.end, table.start, table.thread))
    count = len(order)
    parent = np.full(count, -1)
    depth = _depths(table, order)
    if not count:
        return Nesting(parent, depth, np.zeros(0, dtype=bool), order)
    # The parent is the last operator before, in order, that lies one level higher.
    place = np.arange(count)
    key = depth * count + place  # depth and place in one number
    by_key = np.sort(key)
    inside = depth > 0
    above = np.searchsorted(by_key, (depth[inside] - 1) * count + place[inside]) - 1
    parent_place = by_key[above] % count
    parent[order[inside]] = order[parent_place]

    self_ns = table.end - table.start
    child = order[inside]
    owner = order[parent_place]
    within = np.minimum(table.end[child], table.end[owner]) - table.start[child]
    spent = np.bincount(owner, weights=np.maximum(within, 0), minlength=count)
    self_ns = np.maximum(self_ns - np.rint(spent).astype(np.int64), 0)
    leaves = np.ones(count, dtype=bool)
    leaves[owner] = False
    return Nesting(parent, self_ns, leaves, order)


@once
def operator_nesting(trace: Trace) -> Nesting:
    """Return the nesting of all of a trace's operators."""
    return nest(trace.operators)


def _depths(table: Table, order: Ints) -> Ints:
    """Return how many operators of its thread are open where each one starts, in `order`."""
    thread = table.thread[order]
    start = table.start[order]
    end = np.maximum(table.end[order], start + 1)  # an instant must not end before it starts
    moments = np.sort(end)
    ends = np.sort(_on_thread(thread, end, moments))
    ended = np.searchsorted(ends, _on_thread(thread, start, moments), side="right")
    return np.arange(len(order)) - ended  # all of earlier threads have ended


def _on_thread(thread: Ints, time: Ints, moments: Ints) -> Ints:
    """Return numbers that order by thread, then time; two of the `moments` are told apart."""
    rank = np.searchsorted(moments, time, side="right")
    return thread.astype(np.int64) * (len(moments) + 1) + rank


def innermost(table: Table, nesting: Nesting, thread: Ints, time: Ints) -> Ints:
    """Return the innermost operator of a thread that is open at a time, or -1."""
    operator = np.full(len(time), -1)
    if not len(table):
        return operator
    order = nesting.order
    moments = np.sort(table.start)
    starts = _on_thread(table.thread[order], table.start[order], moments)
    place = np.searchsorted(starts, _on_thread(thread, time, moments), side="right") - 1
    last = order[np.maximum(place, 0)]
    same = (place >= 0) & (table.thread[last] == thread)
    operator[same] = last[same]
    climbing = np.flatnonzero(same)
    while len(climbing):  # until the operator is still open; as many rounds as levels
        climbing = climbing[table.end[operator[climbing]] <= time[climbing]]
        operator[climbing] = nesting.parent[operator[climbing]]
        climbing = climbing[operator[climbing] >= 0]
    return operator


@once
def launch_rows(trace: Trace) -> Ints:
    """Return for every device event the row of the runtime call that launched it, or -1."""
    runtime = trace.runtime
    device = trace.device["correlation"]
    calls = runtime["correlation"]
    if not len(calls):
        return np.full(len(device), -1)
    order = np.lexsort((-runtime.end, runtime.start, calls))
    within = (np.diff(calls[order]) == 0) & (runtime.start[order][1:] < runtime.end[order][:-1])
    order = order[np.append(True, ~within)]  # of nested calls (runtime and driver) the outer
    first = np.minimum(np.searchsorted(calls[order], device), len(order) - 1)
    # Ids may be given again in another window: the last call before the event launched it.
    moments = np.sort(runtime.start)
    group = np.cumsum(np.diff(calls[order], prepend=calls[order][0]) != 0) * (len(moments) + 1)
    key = group + np.searchsorted(moments, runtime.start[order], side="right")
    wanted = group[first] + np.searchsorted(moments, trace.device.start, side="right")
    row = order[np.maximum(np.searchsorted(key, wanted, side="right") - 1, first)]
    return np.where((calls[row] == device) & (device >= 0), row, -1)
