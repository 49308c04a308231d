"""What of a trace cannot be trusted, and what of the launched work it does not show."""

import re

import numpy as np

from torchdoctor.trace.columns import Trace
from torchdoctor.trace.kinds import KERNEL
from torchdoctor.trace.nesting import launch_rows
from torchdoctor.trace.start_up import much_start_up
from torchdoctor.trace.threads import named
from torchdoctor.trace.timeline import Steps
from torchdoctor.words.intervals import Intervals, union

# cudaLaunchKernel, cuLaunchKernelEx, hipExtModuleLaunchKernel, cudaGraphLaunch, ncclLaunch, ...
_LAUNCH = re.compile(r"Launch(?!HostFunc)")
# Share of the launches without a kernel: the device was not recorded, or was cut off with the file.
_MISSING, _MISSING_FROM_CUT, _CAPTURED = 0.90, 0.20, 0.20  # the last: of the time of the steps


def launches(trace: Trace, steps: Steps) -> tuple[int, int]:
    """Return how many launches of kernels and graphs the steps make, and how many show a kernel."""
    calls = named(trace, trace.runtime, _LAUNCH.search)
    calls &= steps.host.index(trace.runtime.start) >= 0
    kernels = trace.device["kind"] == KERNEL
    launched_by = launch_rows(trace)[kernels]
    shown = np.isin(np.flatnonzero(calls), launched_by).sum()
    # A kernel that names no launch of the trace may belong to any of them.
    shown += (steps.index(trace.device.start[kernels][launched_by < 0]) >= 0).sum()
    return int(calls.sum()), min(int(calls.sum()), int(shown))


def device_missing(trace: Trace, steps: Steps) -> str | None:
    """Return why the device's part of the steps is missing, in a sentence; None: it is there."""
    captured = _captures(trace).covered(steps.start, steps.end).sum() / max(steps.total, 1)
    if captured > _CAPTURED:
        return (
            f"The program captures graphs {captured:.0%} of the time: what it launches there does "
            "not run, and is captured once. Record steps that come after it."
        )
    if not steps.known and much_start_up(trace, Intervals(steps.start, steps.end)):
        return (
            "Much of the window is the start-up of the GPU, and little work follows it. What takes "
            "the time of a step cannot be told: record more steps, after some of warm-up."
        )
    made, shown = launches(trace, steps)
    lost = 1.0 - shown / made if made else 0.0
    if not trace.has_device:
        if trace.cut_off and (len(trace.runtime) or trace.metadata.get("deviceProperties")):
            return (
                "The file was cut off or damaged before its GPU events, which the profiler writes "
                "after the host's: what the GPU did is unknown. Record or copy the trace again."
            )
    elif trace.cut_off and lost > _MISSING_FROM_CUT:
        return (
            f"{lost:.0%} of what the steps launched shows no kernel: GPU events lie in the part of "
            "the file that is missing, so GPU time is too low. Record or copy the trace again."
        )
    elif lost > _MISSING:
        return (
            f"{made - shown} of {made} kernel launches in the steps show no kernel: what ran on "
            "the GPU was not recorded (an older profiler records nothing in CUDA graphs), so GPU "
            "time is unknown."
        )
    return None


def _captures(trace: Trace) -> Intervals:
    """Return when launches go into a graph of CUDA or HIP."""
    calls = trace.runtime
    begins = np.sort(calls.start[named(trace, calls, lambda name: "BeginCapture" in name)])
    ends = np.sort(calls.end[named(trace, calls, lambda name: "EndCapture" in name)])
    place = np.searchsorted(ends, begins)
    return union(begins[place < len(ends)], ends[place[place < len(ends)]])


def doubts_about(trace: Trace, missing: str | None = None) -> list[str]:
    """Return the sentences for the report; empty where nothing is wrong."""
    if missing:
        return [missing]
    if trace.has_device:
        return [doubt for doubt in (_silent_graphs(trace), _unlaunched(trace)) if doubt]
    if trace.cut_off:
        return [
            "What can be read of the trace has no GPU events, and the profiler writes them last: "
            "that none ran on a GPU is not certain. GPU figures are not measured."
        ]
    return [
        "The trace has no GPU events: either nothing ran on a GPU or the profiler did not record "
        "it (activities without CUDA); GPU figures are not measured."
    ]


def _silent_graphs(trace: Trace) -> str | None:
    graphs = named(trace, trace.runtime, lambda name: "GraphLaunch" in name)
    launched = trace.runtime["correlation"][graphs]
    silent = int((~np.isin(launched, trace.device["correlation"])).sum())
    if not silent:
        return None
    return (
        f"{silent} of {len(launched)} CUDA graph launches show no kernel: what ran in them is "
        "unknown, so GPU time is too low."
    )


def _unlaunched(trace: Trace) -> str | None:
    calls = trace.runtime["correlation"]
    if np.isin(trace.device["correlation"], calls[calls >= 0]).any():
        return None
    return (
        "No device event names the call that launched it: steps end where the host's step ends, "
        "and work that runs on after it counts in the next one."
    )
