"""Calls of the CUDA or HIP runtime and driver: which ones hold the host, and how long."""

import re
from typing import Any

import numpy as np

from torchdoctor.trace.columns import Ints, Mask, Table, Trace
from torchdoctor.trace.nesting import innermost, operator_nesting
from torchdoctor.trace.start_up import ASKS, begins_context
from torchdoctor.trace.threads import named
from torchdoctor.trace.timeline import Steps, Timeline
from torchdoctor.words import RuntimeCall

# Memory of the device is asked of the driver, or given back to it: what a warm allocator avoids.
_ALLOCATION = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free)(?!.*(?:Host|Async))|cuMem(?:Create|Map|Unmap|Release|SetAccess)"
)
_GIVES_BACK = re.compile(r"Free|MemUnmap|MemRelease")
_WAITS = re.compile(r"(?:cuda|hip|cu)(?:\w*Synchronize|Memcpy|Malloc|Free|Mem[A-Z])")
_AS_WRITTEN = {"aten::_local_scalar_dense": "aten::item"}  # what the user's code says
_EMPTY = re.compile(r"aten::(?:_?empty|resize_)")  # operators that get a tensor its memory
_LEAST_BYTES = 2 << 20  # of what PyTorch's caching allocator asks of the driver
_PROOF, _NEARLY_EACH = 10, 0.5
_ASKED, _OTHER = 1, 0  # what came before a call that frees
_LISTED, _LOOKED_AT = 8, 24  # calls within each other count once, which changes their order


def runtime_calls(trace: Trace, timeline: Timeline) -> list[RuntimeCall]:
    """Return the calls that take most host time in the steps, at most eight."""
    steps, table = timeline.steps, trace.runtime
    if not len(table):
        return []
    rows = table.where(steps.inside(table) > 0)
    # Who launches a kernel is told by the operators; who waits is what is asked here.
    waits = named(trace, rows, _WAITS.match)
    inside = innermost(trace.operators, operator_nesting(trace), rows.thread, rows.start)
    names = len(trace.names)
    operators = np.append(trace.operators.name, names).astype(np.int64)  # -1: the last, no operator
    operator = operators[np.where(waits, inside, -1)]
    key, group = np.unique(rows.name.astype(np.int64) * (names + 1) + operator, return_inverse=True)
    calls = np.bincount(group, minlength=len(key))
    spent = np.bincount(group, weights=rows.end - rows.start, minlength=len(key))
    listed = []
    for row in np.argsort(-spent, kind="stable")[:_LOOKED_AT]:
        name, under = divmod(int(key[row]), names + 1)
        inside_name = trace.names[under] if under < names else None
        own = rows.where(group.reshape(-1) == row)
        threads = np.unique(own.thread)
        host_ns = sum(_covered(own.where(own.thread == thread), steps) for thread in threads)
        listed.append(
            RuntimeCall(
                name=trace.names[name],
                operator=_AS_WRITTEN.get(inside_name or "", inside_name),
                calls_per_step=float(calls[row]) / len(steps),
                host_s=host_ns / len(steps) / 1e9,
                covered_s=_covered(own, steps) / len(steps) / 1e9,
                threads=len(threads),
            )
        )
    return sorted(listed, key=lambda call: -call.host_s)[:_LISTED]


def _covered(table: Table, steps: Steps) -> float:
    """Return the nanoseconds of the steps in which one of these calls is under way."""
    return float(table.spans().covered(steps.start, steps.end).sum())


def allocation(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`: memory asked of the driver, but to make the context."""
    steps, table = timeline.steps, trace.runtime
    if not len(table):
        return {}
    lasting = steps.inside(table)
    kept = (lasting > 0) & named(trace, table, _ALLOCATION.match) & ~begins_context(trace)
    rows, lasting = table.where(kept), lasting[kept]
    inside = innermost(trace.operators, operator_nesting(trace), rows.thread, rows.start)
    gives_back = named(trace, rows, _GIVES_BACK.search)
    before, which = _call_before(trace, rows)
    asks = ~gives_back
    # Memory was full: the driver was asked, nothing was launched, memory given back, asked again.
    last_asked = np.full(len(trace.operators) + 1, np.iinfo(np.int64).min)  # -1: no operator
    np.maximum.at(last_asked, inside[asks], rows.start[asks])
    retried = gives_back & (inside >= 0) & (rows.start < last_asked[inside]) & (before == _ASKED)
    apart = len(np.unique(which[gives_back & (before == _OTHER)]))
    uncached = _uncached(trace, rows, inside, asks, apart)
    return {
        "allocations_per_step": len(rows) / len(steps),
        "allocation_s": float(lasting.sum()) / len(steps) / 1e9,
        "allocator_retries_per_step": len(np.unique(inside[retried])) / len(steps),
        "releases_per_step": int((gives_back & (inside < 0)).sum()) / len(steps),
        "uncached_per_step": uncached / len(steps),
    }


def _call_before(trace: Trace, rows: Table) -> tuple[Ints, Ints]:
    """Return what each call's thread last did before it (launch or ask for memory), and its row."""
    runtime = trace.runtime
    kind = np.full(len(trace.names), -1)
    for number in np.unique(runtime.name).tolist():
        name = trace.names[number]
        kind[number] = _ASKED if ASKS.match(name) else _OTHER if "Launch" in name else -1
    told = runtime.where(kind[runtime.name] >= 0)
    order = np.lexsort((told.start, told.thread))
    span = int(max(runtime.end.max(initial=0), 0)) + 1
    key = told.thread[order].astype(np.int64) * span + told.start[order]
    place = np.searchsorted(key, rows.thread.astype(np.int64) * span + rows.start) - 1
    if not len(order):
        return np.full(len(rows), -1), np.full(len(rows), -1)
    last = order[np.maximum(place, 0)]
    same = (place >= 0) & (told.thread[last] == rows.thread)
    return np.where(same, kind[told.name[last]], -1), last


def _uncached(trace: Trace, rows: Table, inside: Ints, asks: Mask, apart: int) -> int:
    """Return the calls for a tensor's memory that PyTorch's caching allocator would not make."""
    empty = named(trace, trace.operators, _EMPTY.match)
    of_tensor = asks & (inside >= 0) & np.append(empty, False)[inside]
    small = of_tensor & (rows["bytes"] >= 0) & (rows["bytes"] < _LEAST_BYTES)
    if small.sum() >= _PROOF:
        return int(small.sum())
    each = of_tensor.sum() >= max(_PROOF, _NEARLY_EACH * empty.sum())
    return int(of_tensor.sum()) if each and apart >= _NEARLY_EACH * of_tensor.sum() else 0
