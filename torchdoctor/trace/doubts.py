"""What cannot be trusted in a trace, each said in one sentence."""

from __future__ import annotations

import numpy as np

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.threads import named

_OVERLAP_SHARE = 0.01  # of a stream's events; fewer are rounding
_ROUNDING_NS = 2_000  # the first releases wrote whole microseconds


def doubts_about(trace: Trace, missing: str | None = None) -> list[str]:
    """Sentences for the report; empty where nothing is wrong.

    Args:
        missing: why the device's events are not there, where that is known.
    """
    if missing is not None and not trace.has_device:
        return [missing]
    if not trace.has_device and trace.cut_off:
        return [
            "What can be read of the trace has no GPU events, and the profiler writes them last: "
            "that none ran on a GPU is not certain. GPU figures are not measured."
        ]
    if not trace.has_device:
        return [
            "The trace has no GPU events: either nothing ran on a GPU or the profiler did not "
            "record it (activities without CUDA); GPU figures are not measured."
        ]
    of_launches = [missing] if missing else [_silent_graphs(trace), _unlaunched(trace)]
    return [doubt for doubt in (*of_launches, _overlaps(trace)) if doubt]


def _silent_graphs(trace: Trace) -> str | None:
    wanted = np.array(["GraphLaunch" in name for name in trace.names], dtype=bool)
    launches = trace.runtime["correlation"][named(trace, trace.runtime, wanted)]
    silent = int((~np.isin(launches, trace.device["correlation"])).sum())
    if not silent:
        return None
    return (
        f"{silent} of {len(launches)} CUDA graph launches show no kernel: what ran in them is "
        "unknown, so GPU time is too low."
    )


def _overlaps(trace: Trace) -> str | None:
    """A stream runs one thing after the other: slices that overlap have wrong times."""
    device = trace.device
    order = np.lexsort((device.start, device["stream"], device["device"]))
    start, end = device.start[order], device.end[order]
    same = (np.diff(device["stream"][order]) == 0) & (np.diff(device["device"][order]) == 0)
    same &= device["stream"][order][1:] >= 0
    overlapping = int((same & (start[1:] < end[:-1] - _ROUNDING_NS)).sum())
    if overlapping <= _OVERLAP_SHARE * len(order):
        return None
    return (
        f"{overlapping} of {len(order)} device events overlap the one before them on the same "
        "stream: their times are not exact."
    )


def _unlaunched(trace: Trace) -> str | None:
    calls = trace.runtime["correlation"]
    if np.isin(trace.device["correlation"], calls[calls >= 0]).any():
        return None
    return (
        "No device event names the call that launched it: steps end where the host's step ends, "
        "and work that runs on after it counts in the next one."
    )
