"""What the device did in the steps: kernels, tensor cores, synchronisation and copies."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Ints, Table, Trace, once
from torchdoctor.trace.kinds import (
    COPY_CALL,
    KERNEL,
    MEMCPY,
    computes_float32,
    is_communication,
    is_matrix_work,
    uses_tensor_cores,
)
from torchdoctor.trace.nesting import launch_rows
from torchdoctor.trace.threads import named
from torchdoctor.trace.timeline import Steps, Timeline
from torchdoctor.words.intervals import exposed_in_order, intersect, union

SHORT_KERNEL_NS = 10_000
_SYNC_CALL = re.compile(
    r"(?:cuda|hip)(?:Stream|Device|Event|Thread)Synchronize|(?:cu|hip)(?:Stream|Ctx|Event)Synchronize"
)


def summarise_device(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`: kernels, synchronisation and tensor cores."""
    steps, count = timeline.steps, len(timeline.steps)
    device = trace.device.where(steps.index(trace.device.start) >= 0)
    kernels = device.where(device["kind"] == KERNEL)
    length = kernels.end - kernels.start
    host = steps.host
    calls = trace.runtime.where(host.index(trace.runtime.start) >= 0)
    waiting = (calls.end - calls.start)[named(trace, calls, _SYNC_CALL.match)]
    return {
        "kernels_per_step": len(kernels) / count,
        "short_kernels_share": float((length < SHORT_KERNEL_NS).mean()) if len(length) else None,
        "kernel_median_us": float(np.median(length)) / 1000 if len(length) else None,
        "gpu_busy_share": _busy_share(trace.device, steps),
        "sync_s": float(waiting.sum()) / count / 1e9,
        "syncs_per_step": len(waiting) / count,
        "tensor_core_share": _tensor_core_share(trace, kernels),
        "float32_matrix_s": _float32_matrix_ns(trace, steps) / count / 1e9,
    }


@once
def device_time(trace: Trace) -> Ints:
    """Return what each device event adds to the time in which anything runs on the device.

    Kernels that compute come first and collectives and copies below them, as in the shares: a
    product that runs beside a collective takes its time all the same.
    """
    device = trace.device
    computing = (device["kind"] == KERNEL) & ~named(trace, device, is_communication)
    added = np.zeros(len(device), dtype=np.int64)
    added[computing] = exposed_in_order(device.start[computing], device.end[computing])
    start, end = device.start[~computing], device.end[~computing]
    under = device.spans(computing).covered(start, end)
    added[~computing] = np.minimum(exposed_in_order(start, end), end - start - under)
    return added


def _busy_share(device: Table, steps: Steps) -> float | None:
    """Return the share of the steps in which a kernel runs, mean over the devices."""
    if not steps.total:
        return None
    kernels = device.where(device["kind"] == KERNEL)
    shares = []
    for number in np.unique(device["device"]):
        rows = kernels["device"] == number
        shares.append(
            float(kernels.spans(rows).covered(steps.start, steps.end).sum()) / steps.total
        )
    return float(np.mean(shares))


def _float32_matrix_ns(trace: Trace, steps: Steps) -> int:
    """Return the device time of matrix kernels without tensor cores; doubles are left out."""
    device = trace.device
    wanted = (device["kind"] == KERNEL) & named(trace, device, computes_float32)
    return int(device_time(trace)[wanted & (steps.index(device.start) >= 0)].sum())


def _tensor_core_share(trace: Trace, kernels: Table) -> float | None:
    """Return the tensor cores' share of the time in matrix kernels; None: there are none."""
    matrix = named(trace, kernels, is_matrix_work)
    tensor = named(trace, kernels, uses_tensor_cores)
    length = kernels.end - kernels.start
    in_matrix = int(length[matrix].sum())
    in_tensor = int(length[matrix & tensor].sum())
    return in_tensor / in_matrix if in_matrix else None


# What a copy call costs that only queues the copy: about 10 us with the profiler's own share.
COPY_LAUNCH_NS = 20_000
# "Memcpy HtoD (Pageable -> Device)", and of ROCm's older versions "CopyHostToDevice".
_SIDES = re.compile(r"\((\w+) ?-> ?(\w+)\)|Copy(Host|Device)To(Host|Device)")


def summarise_copies(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`: copies, and how long they block the host."""
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

    return {
        "h2d_bytes": _bytes(copies, to_device, count),
        "d2h_bytes": _bytes(copies, to_host, count),
        "pageable_copies": float(pageable.sum()) / count,
        "pageable_wait_s": wait_s(pageable),
        "d2h_copies": float(to_host.sum()) / count,
        "d2h_wait_s": wait_s(to_host),
        "blocking_copy_s": float(held_ns.sum()) / count / 1e9,
        "blocking_copy_exposed_s": exposed.total / count / 1e9,
    }


def copy_sides(trace: Trace, copies: Table) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """Return source and target memory of every copy: "pageable", "pinned", "device" or ""."""
    names, row = np.unique(copies.name, return_inverse=True)
    sides = []
    for number in names.tolist():
        match = _SIDES.search(trace.names[number])
        sides.append([side.lower() for side in match.groups() if side] if match else ["", ""])
    table = np.array(sides or [["", ""]])[row]
    return table[:, 0], table[:, 1]


def _held_ns(trace: Trace, timeline: Timeline) -> Ints:
    """Return how long each runtime call holds the host in a copy, beyond queueing it."""
    runtime = trace.runtime
    counts = named(trace, runtime, COPY_CALL.match)
    counts &= timeline.steps.host.index(runtime.start) >= 0
    return np.where(counts, np.maximum(runtime.end - runtime.start - COPY_LAUNCH_NS, 0), 0)


def _bytes(copies: Table, rows: NDArray[np.bool_], steps: int) -> int | None:
    """Return the bytes of the copies per step; None if no copy says how large it was."""
    sizes: Ints = copies["bytes"][rows]
    if len(sizes) and (sizes < 0).all():
        return None
    return int(sizes[sizes >= 0].sum()) // steps
