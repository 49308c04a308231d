"""Calls of the CUDA or HIP runtime and driver: which ones hold the host, and how long."""

from __future__ import annotations

import re

import numpy as np

from torchdoctor.recording.timeline import Timeline
from torchdoctor.recording.trace_columns import Ints, Trace
from torchdoctor.recording.trace_nesting import innermost, nest
from torchdoctor.records import RuntimeCall

# Memory of the device is asked of the driver, or given back to it: what a warm allocator avoids.
_ALLOCATION = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free)(?!.*(?:Host|Async))|cuMem(?:Create|Map|Unmap|Release|SetAccess)"
)
_WAITS = re.compile(r"(?:cuda|hip|cu)(?:\w*Synchronize|Memcpy|Malloc|Free|Mem[A-Z])")
_AS_WRITTEN = {"aten::_local_scalar_dense": "aten::item"}  # what the user's code says
_LISTED = 8


def runtime_calls(trace: Trace, timeline: Timeline) -> list[RuntimeCall]:
    """The calls that take most host time in the steps, at most eight."""
    steps, table = timeline.steps, trace.runtime
    if not len(table):
        return []
    rows = table.where(steps.index(table.start) >= 0)
    # Who launches a kernel is told by the operators; who waits is what is asked here.
    waits = np.array([_WAITS.match(name) is not None for name in trace.names], dtype=bool)
    inside = innermost(trace.operators, nest(trace.operators), rows.thread, rows.start)
    names = len(trace.names)
    operator = np.where(waits[rows.name] & (inside >= 0), _names_of(trace, inside), names)
    key, group = np.unique(rows.name.astype(np.int64) * (names + 1) + operator, return_inverse=True)
    calls = np.bincount(group, minlength=len(key))
    spent = np.bincount(group, weights=rows.end - rows.start, minlength=len(key))
    found = []
    for row in np.argsort(-spent, kind="stable")[:_LISTED]:
        name, under = divmod(int(key[row]), names + 1)
        inside_name = trace.names[under] if under < names else None
        found.append(
            RuntimeCall(
                name=trace.names[name],
                operator=_AS_WRITTEN.get(inside_name or "", inside_name),
                calls_per_step=float(calls[row]) / len(steps),
                host_s=float(spent[row]) / len(steps) / 1e9,
            )
        )
    return found


def _names_of(trace: Trace, rows: Ints) -> Ints:
    """The name of each operator's row; anything for -1."""
    if not len(trace.operators):
        return rows
    return trace.operators.name[np.maximum(rows, 0)].astype(np.int64)


def allocation(trace: Trace, timeline: Timeline) -> tuple[float, float] | None:
    """Driver allocations: calls per step and host seconds per step; None without runtime calls."""
    steps, table = timeline.steps, trace.runtime
    if not len(table):
        return None
    wanted = np.array([_ALLOCATION.match(name) is not None for name in trace.names], dtype=bool)
    rows = table.where((steps.index(table.start) >= 0) & wanted[table.name])
    spent = float((rows.end - rows.start).sum())
    return len(rows) / len(steps), spent / len(steps) / 1e9
