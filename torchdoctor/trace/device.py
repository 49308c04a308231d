"""What the device did in the steps: kernels, synchronisation, tensor cores."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.categories import KERNEL
from torchdoctor.trace.columns import Ints, Table, Trace, once
from torchdoctor.trace.kernel_names import (
    computes_float32,
    is_communication,
    is_matrix_work,
    uses_tensor_cores,
)
from torchdoctor.trace.threads import named_by
from torchdoctor.trace.timeline import Steps, Timeline
from torchdoctor.words.intervals import exposed_in_order, union

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
    """Reads the device's tracks and the host's calls of its runtime."""
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
    """What each device event adds to the device's time; at most the time in which anything runs.

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
    """Mean over the devices of the share of the steps in which one kernel at least runs."""
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
    """Of the device's time, what matrix kernels without tensor cores add; doubles left out."""
    device = trace.device
    wanted = (device["kind"] == KERNEL) & named_by(trace, device, computes_float32)
    return int(device_time(trace)[wanted & (steps.index(device.start) >= 0)].sum())


def _tensor_core_share(trace: Trace, kernels: Table) -> float | None:
    """Of the time in matrix products, convolutions and attention; None: there are none."""
    matrix = named_by(trace, kernels, is_matrix_work)
    tensor = named_by(trace, kernels, uses_tensor_cores)
    length = kernels.end - kernels.start
    in_matrix = int(length[matrix].sum())
    in_tensor = int(length[matrix & tensor].sum())
    return in_tensor / in_matrix if in_matrix else None
