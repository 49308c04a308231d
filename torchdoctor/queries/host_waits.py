"""How long the host waits for a device in a step, and which calls read a batch's output. Pure."""

from dataclasses import dataclass

from torchdoctor.queries.analysed import calls_of
from torchdoctor.queries.lookup import (
    data_wait_share,
    device_busy,
    device_unseen,
    reading_wait_s,
    training_loaders,
)
from torchdoctor.schema import Recording, TensorCall, TraceStatistics

_COPYING = ("cpu", "numpy", "tolist", "__repr__", "nonzero")
_READING = ("cpu", "item", "numpy", "tolist")
_EACH_STEP = 0.9  # calls: what is read less often is not read of each batch


@dataclass(frozen=True, kw_only=True)
class HostWait:
    """The host's waits in a step: what the device then waits for the host, and the whole."""

    share: float
    blocked: float
    syncs: float | None
    copies: float | None  # to the host, where these hold it


def host_wait(recording: Recording) -> HostWait | None:
    """Return the waits of the profiled steps; None: they were not recorded."""
    traced = recording.trace
    if traced is None or not traced.step_s:
        return None
    loaders = training_loaders(recording)
    fetches = bool(loaders) and not loaders[0].num_workers  # while the GPU could compute
    if device_unseen(recording):
        blocked = _read_s(recording, traced) / traced.step_s
        share = min(blocked, 1.0 - max(device_busy(recording) or 0.0, blocked))
        share -= 0.0 if fetches else data_wait_share(recording) or 0.0
    elif traced.sync_s is None:
        return None
    else:
        blocked = (traced.sync_s + (traced.d2h_wait_s or 0.0)) / traced.step_s
        shares = traced.shares
        idle = (shares.cpu or 0.0) + (shares.runtime or 0.0) + (shares.other or 0.0)
        share = min(blocked, idle + (shares.data_loader or 0.0) * fetches)
        if traced.after_sync_s is not None:
            share = min(share, traced.after_sync_s / traced.step_s)
    copies = traced.d2h_copies if traced.d2h_wait_s else None  # others hold nobody
    return HostWait(share=share, blocked=blocked, syncs=traced.syncs_per_step, copies=copies)


def _read_s(recording: Recording, traced: TraceStatistics) -> float:
    """Return the seconds in operators that read values, by a profiler that sees no device."""
    # A copy to the host is an operator like one to the device: the noted calls tell.
    copies = any(call.name in _COPYING for call in calls_of(recording, "wait"))
    return reading_wait_s(traced, *(("aten::copy_",) if copies else ()))


def reads_of_outputs(recording: Recording) -> list[TensorCall]:
    """Return the lines of a program that infers which read a device's tensor in each step.

    None of them where the host waits longest in another call.
    """
    if not recording.infers:
        return []
    waits = calls_of(recording, "wait")
    reads = [wait for wait in waits if wait.name in _READING and wait.calls_per_step >= _EACH_STEP]
    return reads if waits[:1] == reads[:1] else []
