"""Copies between host and device in the steps: how much, from what memory, and who waits."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.categories import MEMCPY
from torchdoctor.trace.columns import Ints, Table, Trace
from torchdoctor.trace.host_waits import COPY_CALL
from torchdoctor.trace.threads import named_by
from torchdoctor.trace.timeline import Timeline, launch_rows
from torchdoctor.words.intervals import intersect, union

# What a copy call costs that only queues the copy: about 10 us with the profiler's own share.
COPY_LAUNCH_NS = 20_000
# "Memcpy HtoD (Pageable -> Device)", and of ROCm's older versions "CopyHostToDevice".
_SIDES = re.compile(r"\((\w+) ?-> ?(\w+)\)|Copy(Host|Device)To(Host|Device)")


@dataclass(frozen=True)
class CopySummary:
    """Fields of `TraceStatistics`: means per step, None where the trace does not say."""

    h2d_bytes: int | None
    d2h_bytes: int | None
    pageable_copies: float
    pageable_wait_s: float
    d2h_copies: float
    d2h_wait_s: float
    blocking_copy_s: float
    blocking_copy_exposed_s: float


def summarise_copies(trace: Trace, timeline: Timeline) -> CopySummary:
    """Reads the device's copies and the host's calls that make them."""
    steps, count = timeline.steps, len(timeline.steps)
    inside = (steps.index(trace.device.start) >= 0) & (trace.device["kind"] == MEMCPY)
    copies, call = trace.device.where(inside), launch_rows(trace)[inside]
    sources, targets = copy_sides(trace, copies)
    to_device = (sources != "device") & (targets == "device")
    to_host = (sources == "device") & (targets != "device")
    pageable = to_device & (sources == "pageable")
    held_ns = _held_ns(trace, timeline)
    runtime = trace.runtime
    blocked = held_ns > 0
    held = union(runtime.start[blocked] + COPY_LAUNCH_NS, runtime.end[blocked])
    exposed = intersect(held, timeline.exposed_intervals["runtime"])

    def wait_s(rows: NDArray[np.bool_]) -> float:
        calls = np.unique(call[rows & (call >= 0)])
        return float(held_ns[calls].sum()) / count / 1e9

    return CopySummary(
        h2d_bytes=_bytes(copies, to_device, count),
        d2h_bytes=_bytes(copies, to_host, count),
        pageable_copies=float(pageable.sum()) / count,
        pageable_wait_s=wait_s(pageable),
        d2h_copies=float(to_host.sum()) / count,
        d2h_wait_s=wait_s(to_host),
        blocking_copy_s=float(held_ns.sum()) / count / 1e9,
        blocking_copy_exposed_s=exposed.total / count / 1e9,
    )


def copy_sides(trace: Trace, copies: Table) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """Source and target memory of every copy by its name: "pageable", "pinned", "device" or ""."""
    names, row = np.unique(copies.name, return_inverse=True)
    sides = []
    for number in names.tolist():
        match = _SIDES.search(trace.names[number])
        sides.append([side.lower() for side in match.groups() if side] if match else ["", ""])
    table = np.array(sides or [["", ""]])[row]
    return table[:, 0], table[:, 1]


def _held_ns(trace: Trace, timeline: Timeline) -> Ints:
    """Of every runtime call how long it holds the host in a copy, beyond queueing one."""
    runtime = trace.runtime
    counts = named_by(trace, runtime, lambda name: COPY_CALL.match(name) is not None)
    counts &= timeline.steps.host.index(runtime.start) >= 0
    return np.where(counts, np.maximum(runtime.end - runtime.start - COPY_LAUNCH_NS, 0), 0)


def _bytes(copies: Table, rows: NDArray[np.bool_], steps: int) -> int | None:
    """None: there are such copies and none says how large it was."""
    sizes: Ints = copies["bytes"][rows]
    if len(sizes) and (sizes < 0).all():
        return None
    return int(sizes[sizes >= 0].sum()) // steps
