"""Calls of the CUDA or HIP runtime and driver: which ones hold the host, and how long."""

import re
from typing import Any

import numpy as np

from torchdoctor.trace.columns import Table, Trace
from torchdoctor.trace.nesting import innermost, operator_nesting
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
_LISTED, _LOOKED_AT = 8, 24  # calls within each other count once, which changes their order


def runtime_calls(trace: Trace, timeline: Timeline) -> list[RuntimeCall]:
    """Return the calls that take most host time in the steps, at most eight."""
    steps, table = timeline.steps, trace.runtime
    if not len(table):
        return []
    rows = table.where(steps.index(table.start) >= 0)
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
    """Return fields of `TraceStatistics`: device memory that the driver was asked for or given."""
    steps, table = timeline.steps, trace.runtime
    if not len(table):
        return {}
    rows = table.where((steps.index(table.start) >= 0) & named(trace, table, _ALLOCATION.match))
    inside = innermost(trace.operators, operator_nesting(trace), rows.thread, rows.start)
    gives_back = named(trace, rows, _GIVES_BACK.search)
    gave, asked = inside[gives_back], inside[~gives_back]
    last_asked = np.full(len(trace.operators) + 1, np.iinfo(np.int64).min)  # -1: no operator
    np.maximum.at(last_asked, asked, rows.start[~gives_back])
    retries = np.unique(gave[rows.start[gives_back] < last_asked[gave]])
    return {
        "allocations_per_step": len(rows) / len(steps),
        "allocation_s": float((rows.end - rows.start).sum()) / len(steps) / 1e9,
        "allocator_retries_per_step": int((retries >= 0).sum()) / len(steps),
        "releases_per_step": int((gives_back & (inside < 0)).sum()) / len(steps),
    }
