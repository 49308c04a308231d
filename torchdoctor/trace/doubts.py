"""What of a trace cannot be trusted, and what of the launched work it does not show."""

from __future__ import annotations

import re

import numpy as np

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.kinds import KERNEL
from torchdoctor.trace.nesting import innermost, launch_rows, operator_nesting
from torchdoctor.trace.threads import named
from torchdoctor.trace.timeline import Steps

# cudaLaunchKernel, cuLaunchKernelEx, hipExtModuleLaunchKernel, cudaGraphLaunch, ncclLaunch, ...
_LAUNCH = re.compile(r"Launch(?!HostFunc)")
# Operators that launch a kernel each time, wherever they run on a GPU at all.
_COMPUTES = re.compile(
    r"aten::(?:mm|bmm|addmm|baddbmm|(?:cudnn|miopen)_\w+|convolution_backward|relu_?|clamp_min_?|"
    r"native_(?:batch|layer|group)_norm\w*|threshold_backward|gelu\w*|_(?:log_)?softmax\w*)$"
)
_NEXT_TO_NONE = 0.10  # of the launches show their kernel: the device was not recorded
_MISSING_FROM_CUT = 0.20  # of the launches lack it, in a file that was cut off


def launches(trace: Trace, steps: Steps) -> tuple[int, int]:
    """Return how many launches of kernels and graphs the steps make, and how many show a kernel.

    A kernel that names no launch of the trace may belong to any of them.
    """
    launching = named(trace, trace.runtime, _LAUNCH.search)
    calls = launching & (steps.host.index(trace.runtime.start) >= 0)
    made = int(calls.sum())
    kernels = trace.device["kind"] == KERNEL
    launched_by = launch_rows(trace)[kernels]
    known = launched_by[launched_by >= 0]
    shown = np.zeros(len(calls), dtype=bool)
    shown[known] = True
    orphans = steps.index(trace.device.start[kernels][launched_by < 0]) >= 0
    return made, min(made, int((shown & calls).sum()) + int(orphans.sum()))


def _without_launch(trace: Trace, steps: Steps) -> float:
    """Return the share of computing operators without a launch: calls are lost as well."""
    nesting = operator_nesting(trace)
    wanted = named(trace, trace.operators, _COMPUTES.match) & nesting.leaves
    wanted &= steps.host.index(trace.operators.start) >= 0
    if not wanted.any():
        return 0.0
    inside = innermost(trace.operators, nesting, trace.runtime.thread, trace.runtime.start)
    calling = np.zeros(len(wanted), dtype=bool)
    calling[inside[inside >= 0]] = True
    return float((wanted & ~calling).sum() / wanted.sum())


def device_missing(trace: Trace, steps: Steps) -> str | None:
    """Return why the device's part of the steps is missing, in a sentence; None: it is there."""
    made, shown = launches(trace, steps)
    share = shown / made if made else None
    if trace.cut_off:
        if not trace.has_device and (len(trace.runtime) or trace.metadata.get("deviceProperties")):
            return (
                "The file was cut off or damaged before its GPU events, which the profiler writes "
                "after the host's: what the GPU did is unknown. Record or copy the trace again."
            )
        lost = max(1.0 - (1.0 if share is None else share), _without_launch(trace, steps))
        if trace.has_device and lost > _MISSING_FROM_CUT:
            return (
                f"{lost:.0%} of what the steps launched shows no kernel: GPU events lie in the "
                "part of the file that is missing, so GPU time is too low. Record or copy the "
                "trace again."
            )
    if trace.has_device and share is not None and share < _NEXT_TO_NONE:
        return (
            f"{made - shown} of {made} kernel launches in the steps show "
            "no kernel: what ran on the GPU was not recorded (an older profiler records nothing in "
            "CUDA graphs), so GPU time is unknown."
        )
    return None


_OVERLAP_SHARE = 0.01  # of a stream's events; fewer are rounding
_ROUNDING_NS = 2_000  # the first releases wrote whole microseconds


def doubts_about(trace: Trace, missing: str | None = None) -> list[str]:
    """Return the sentences for the report; empty where nothing is wrong."""
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
    graphs = named(trace, trace.runtime, lambda name: "GraphLaunch" in name)
    launches = trace.runtime["correlation"][graphs]
    silent = int((~np.isin(launches, trace.device["correlation"])).sum())
    if not silent:
        return None
    return (
        f"{silent} of {len(launches)} CUDA graph launches show no kernel: what ran in them is "
        "unknown, so GPU time is too low."
    )


def _overlaps(trace: Trace) -> str | None:
    """Return a doubt if slices of a stream overlap, which runs one thing after the other."""
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
