"""What the device did in the steps: kernels, tensor cores, synchronisation and copies."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
from torchdoctor.trace.threads import named_by
from torchdoctor.trace.timeline import Steps, Timeline
from torchdoctor.words.intervals import exposed_in_order, intersect, union

SHORT_KERNEL_NS = 10_000
_SYNC_CALL = re.compile(
    r"(?:cuda|hip)(?:Stream|Device|Event|Thread)Synchronize|(?:cu|hip)(?:Stream|Ctx|Event)Synchronize"
)


@dataclass(frozen=True)
class DeviceSummary:
    """Fields of `TraceStatistics`: means per step, None where the trace does not say."""

    kernels_per_step: float
    short_kernels_share: float | None
    kernel_median_us: float | None
    gpu_busy_share: float | None
    sync_s: float
    syncs_per_step: float
    tensor_core_share: float | None
    float32_matrix_s: float


def summarise_device(trace: Trace, timeline: Timeline) -> DeviceSummary:
    """Read the device's tracks and the host's calls of its runtime."""
    steps, count = timeline.steps, len(timeline.steps)
    device = trace.device.where(steps.index(trace.device.start) >= 0)
    kernels = device.where(device["kind"] == KERNEL)
    length = kernels.end - kernels.start
    host = steps.host
    calls = trace.runtime.where(host.index(trace.runtime.start) >= 0)
    waiting = (calls.end - calls.start)[_matching(trace, calls, _SYNC_CALL)]
    return DeviceSummary(
        kernels_per_step=len(kernels) / count,
        short_kernels_share=float((length < SHORT_KERNEL_NS).mean()) if len(length) else None,
        kernel_median_us=float(np.median(length)) / 1000 if len(length) else None,
        gpu_busy_share=_busy_share(trace.device, steps),
        sync_s=float(waiting.sum()) / count / 1e9,
        syncs_per_step=len(waiting) / count,
        tensor_core_share=_tensor_core_share(trace, kernels),
        float32_matrix_s=_float32_matrix_ns(trace, steps) / count / 1e9,
    )


@once
def device_time(trace: Trace) -> Ints:
    """Return what each device event adds to the time in which anything runs on the device.

    Kernels that compute come first and collectives and copies below them, as in the shares: a
    product that runs beside a collective takes its time all the same.
    """
    device = trace.device
    computing = (device["kind"] == KERNEL) & ~named_by(trace, device, is_communication)
    added = np.zeros(len(device), dtype=np.int64)
    added[computing] = exposed_in_order(device.start[computing], device.end[computing])
    start, end = device.start[~computing], device.end[~computing]
    under = union(device.start[computing], device.end[computing]).covered(start, end)
    added[~computing] = np.minimum(exposed_in_order(start, end), end - start - under)
    return added


def _matching(trace: Trace, table: Table, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    return named_by(trace, table, lambda name: pattern.match(name) is not None)


def _busy_share(device: Table, steps: Steps) -> float | None:
    """Return the share of the steps in which a kernel runs, mean over the devices."""
    if not steps.total:
        return None
    kernels = device.where(device["kind"] == KERNEL)
    shares = []
    for number in np.unique(device["device"]):
        rows = kernels["device"] == number
        busy = union(kernels.start[rows], kernels.end[rows])
        shares.append(float(busy.covered(steps.start, steps.end).sum()) / steps.total)
    return float(np.mean(shares))


def _float32_matrix_ns(trace: Trace, steps: Steps) -> int:
    """Return the device time of matrix kernels without tensor cores; doubles are left out."""
    device = trace.device
    wanted = (device["kind"] == KERNEL) & named_by(trace, device, computes_float32)
    return int(device_time(trace)[wanted & (steps.index(device.start) >= 0)].sum())


def _tensor_core_share(trace: Trace, kernels: Table) -> float | None:
    """Return the tensor cores' share of the time in matrix kernels; None: there are none."""
    matrix = named_by(trace, kernels, is_matrix_work)
    tensor = named_by(trace, kernels, uses_tensor_cores)
    length = kernels.end - kernels.start
    in_matrix = int(length[matrix].sum())
    in_tensor = int(length[matrix & tensor].sum())
    return in_tensor / in_matrix if in_matrix else None


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
    """Read the device's copies and the host's calls that make them."""
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
    counts = named_by(trace, runtime, lambda name: COPY_CALL.match(name) is not None)
    counts &= timeline.steps.host.index(runtime.start) >= 0
    return np.where(counts, np.maximum(runtime.end - runtime.start - COPY_LAUNCH_NS, 0), 0)


def _bytes(copies: Table, rows: NDArray[np.bool_], steps: int) -> int | None:
    """Return the bytes of the copies per step; None if no copy says how large it was."""
    sizes: Ints = copies["bytes"][rows]
    if len(sizes) and (sizes < 0).all():
        return None
    return int(sizes[sizes >= 0].sum()) // steps
