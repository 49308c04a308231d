"""A trace in figures: columns -> `records.TraceStatistics`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchdoctor.trace.calls import allocation, runtime_calls
from torchdoctor.trace.columns import Trace
from torchdoctor.trace.compilation import pointwise_chains, traced_compilation
from torchdoctor.trace.device import summarise_copies, summarise_device
from torchdoctor.trace.doubts import device_missing, doubts_about
from torchdoctor.trace.exchange import gradient_exchange
from torchdoctor.trace.files import trace_paths
from torchdoctor.trace.metadata import backend_of
from torchdoctor.trace.operators import summarise_operators
from torchdoctor.trace.products import matrix_work
from torchdoctor.trace.python import python_places
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.timeline import BRANCHES, Timeline, build_timeline
from torchdoctor.trace.what_if import what_if
from torchdoctor.words import Shares, TraceStatistics


def read_and_summarise(paths: Iterable[Path]) -> list[TraceStatistics]:
    """Read traces one after the other; a folder stands for the traces in it (one per rank)."""
    return [summarise(read_trace(file)) for path in paths for file in trace_paths(path)]


def summarise(trace: Trace, timeline: Timeline | None = None) -> TraceStatistics:
    """Return all figures of one trace; times are means per step.

    Without step annotations the whole trace counts as one span, `steps` is 0, and a doubt says so.
    """
    timeline = timeline or build_timeline(trace)
    steps = timeline.steps
    host = summarise_operators(trace, timeline)
    missing = device_missing(trace, steps)
    about = doubts_about(trace, missing)
    device: dict[str, Any] = {}
    if trace.has_device:
        device = summarise_device(trace, timeline) | summarise_copies(trace, timeline)
    return TraceStatistics(
        path=trace.path,
        steps=len(steps) if steps.known else 0,
        step_s=steps.total / len(steps) / 1e9,
        step_times_s=[float(x) / 1e9 for x in (steps.end - steps.start)] if steps.known else [],
        shares=device_shares(timeline)
        if trace.has_device
        else host_shares(timeline, host["outside_s"], device_unknown=missing is not None),
        has_device=trace.has_device,
        device_missing=missing,
        runtime_calls=runtime_calls(trace, timeline),
        matrix_work=matrix_work(trace, timeline),
        pointwise=pointwise_chains(trace, timeline),
        compilation=traced_compilation(trace, timeline),
        python_places=python_places(trace, timeline),
        exchange=gradient_exchange(trace, timeline),
        what_if=what_if(trace, timeline, [*trace.doubts, *(about if trace.has_device else [])]),
        doubts=[*trace.doubts, *steps.doubts, *about],
        **_communication(trace, timeline),
        **backend_of(trace, timeline),
        **host,
        **allocation(trace, timeline),
        **device,
    )


def device_shares(timeline: Timeline) -> Shares:
    """Return the eight shares of a trace with device events; None: steps without length."""
    return Shares(**{branch: timeline.share(branch) for branch in (*BRANCHES, "other")})


def host_shares(timeline: Timeline, outside_s: float, device_unknown: bool = False) -> Shares:
    """Return the shares of a trace without a GPU: what is not loader or collective runs on the CPU.

    In long stretches without any operator (`outside_s`) the program computed or slept: "other".
    Short ones link operators: "cpu". If the device is unknown, neither can be told.
    """
    total = timeline.steps.total
    if not total:
        return Shares()
    loading, waiting = timeline.share("data_loader") or 0.0, timeline.share("communication") or 0.0
    if device_unknown:
        return Shares(data_loader=loading)
    rest = max(0.0, 1.0 - loading - waiting)
    outside = min(rest, outside_s * 1e9 * len(timeline.steps) / total)
    return Shares(
        communication=waiting if len(timeline.collectives) else None,
        data_loader=loading,
        cpu=rest - outside,
        other=outside,
    )


def _communication(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return total and exposed time of collectives per step; exposed: under no kernel."""
    steps = timeline.steps
    if not trace.has_device and not len(timeline.collectives):
        return {}
    total = timeline.collectives.covered(steps.start, steps.end).sum()
    return {
        "communication_s": float(total) / len(steps) / 1e9,
        "communication_exposed_s": float(timeline.exposed["communication"].sum())
        / len(steps)
        / 1e9,
    }
