"""A trace in figures (columns -> `schema.TraceStatistics`), and what of it cannot be trusted."""

import re
from typing import Any

import numpy as np

from torchdoctor.schema import Shares, TraceStatistics
from torchdoctor.schema.evidence import Evidence, fact
from torchdoctor.schema.intervals import Intervals, union
from torchdoctor.trace.columns import Trace, named
from torchdoctor.trace.device import allocation, runtime_calls, summarise_copies, summarise_device
from torchdoctor.trace.exchange import collective_kinds, gradient_exchange
from torchdoctor.trace.kinds import KERNEL
from torchdoctor.trace.loop_marks import is_loader, of_fetching_thread
from torchdoctor.trace.nesting import launch_rows
from torchdoctor.trace.operators import (
    host_work,
    pointwise_chains,
    summarise_operators,
    traced_compilation,
)
from torchdoctor.trace.parts import traced_parts
from torchdoctor.trace.products import float32_matrix_s, matrix_work
from torchdoctor.trace.program import (
    backend_of,
    compiled,
    engine,
    has_engine,
    idle_gpus,
    optimizes,
    platform,
    training_mode,
    trains,
)
from torchdoctor.trace.python import python_places
from torchdoctor.trace.timeline import (
    BRANCHES,
    Steps,
    Timeline,
    build_timeline,
    much_start_up,
    unusual_part,
)
from torchdoctor.trace.what_if import what_if

_LONG = 0.3  # of the longest wait: the others found their batch ready
_FEWEST = 3  # long waits, equally far apart
# cudaLaunchKernel, cuLaunchKernelEx, hipExtModuleLaunchKernel, cudaGraphLaunch, ncclLaunch, ...
_LAUNCH = re.compile(r"Launch(?!HostFunc)")


def summarise(trace: Trace, timeline: Timeline | None = None) -> TraceStatistics:
    """Return all figures of one trace, means per step; without marks it is one span."""
    timeline = timeline or build_timeline(trace)
    steps = timeline.steps
    count = len(timeline.steps)
    work = host_work(trace, timeline)
    fields = summarise_operators(trace, timeline, work) | allocation(trace, timeline)
    missing = device_missing(trace, steps)
    about = doubts_about(trace, missing)
    shares = _host_shares(timeline, fields["outside_s"], device_unknown=missing is not None)
    if trace.has_device:
        shares = Shares(**{branch: timeline.share(branch) for branch in (*BRANCHES, "other")})
        fields |= summarise_device(trace, timeline) | summarise_copies(trace, timeline)
        fields["float32_matrix_s"] = float32_matrix_s(trace, timeline)
        lost_s, why = unusual_part(trace, Intervals(steps.start, steps.end), steps.known)
        fields |= {"unusual_s": lost_s / count, "unusual": why}
    if trace.has_device or len(timeline.collectives):
        total = timeline.collectives.covered(steps.start, steps.end).sum()
        exposed = timeline.exposed["communication"].sum()
        fields["communication_s"] = float(total) / count / 1e9
        fields["communication_exposed_s"] = float(exposed) / count / 1e9
    return TraceStatistics(
        path=trace.path,
        steps=count if steps.known else 0,
        step_s=steps.total / count / 1e9,
        step_times_s=[float(ns) / 1e9 for ns in (steps.end - steps.start)] if steps.known else [],
        shares=shares,
        has_device=trace.has_device,
        device_missing=missing,
        runtime_calls=runtime_calls(trace, timeline),
        matrix_work=matrix_work(trace, timeline),
        pointwise=pointwise_chains(trace, timeline),
        compilation=traced_compilation(trace, timeline),
        python_places=python_places(trace, timeline),
        exchange=gradient_exchange(trace, timeline),
        collectives=collective_kinds(trace, timeline),
        parts=traced_parts(trace, timeline, work),
        what_if=what_if(trace, timeline, [*trace.doubts, *(about if trace.has_device else [])]),
        doubts=[*trace.doubts, *steps.doubts, *about],
        trains=trains(trace),
        optimizes=optimizes(trace),
        has_engine=has_engine(trace),
        platform=platform(trace),
        idle_gpus=idle_gpus(trace),
        engine=engine(trace),
        compiled=compiled(trace),
        **training_mode(trace),
        events=_events(trace, steps),
        start_up_s=steps.start_up / 1e9,
        with_stack="python_function" in trace.categories,
        **backend_of(trace, timeline),
        **_loading(trace, timeline),
        **fields,
    )


def _events(trace: Trace, steps: Steps) -> int:
    """Return how many operators, driver calls and device events lie in the steps."""
    tables = (trace.operators, trace.runtime, trace.device)
    return sum(int((steps.index(table.start) >= 0).sum()) for table in tables)


def _host_shares(timeline: Timeline, outside_s: float, device_unknown: bool) -> Shares:
    """Return the shares of a trace without a GPU: what is not loader or collective runs on the CPU.

    In long stretches without any operator (`outside_s`) the program computed or slept: "other".
    Short ones link operators: "cpu". If the device is unknown, neither can be told.
    """
    total = timeline.steps.total
    if not total:
        return Shares()
    loading = timeline.share("data_loader") or 0.0
    waiting = timeline.share("communication") or 0.0
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


def _loading(trace: Trace, timeline: Timeline) -> dict[str, Any]:
    """Return fields of `TraceStatistics`; of n workers, every n-th wait is long."""
    rows = []
    for table in trace.ranges:
        waits = table.where(named(trace, table, is_loader) & ~of_fetching_thread(trace, table))
        rows.append(waits.where(timeline.steps.inside(waits) > 0))
    names = {trace.names[name] for table in rows for name in table.name.tolist()}
    if not any("_MultiProcessing" in name for name in names):
        return {"loader_workers": 0} if any("_SingleProcess" in name for name in names) else {}
    start = np.concatenate([table.start for table in rows])
    lasting = (np.concatenate([table.end for table in rows]) - start)[np.argsort(start)]
    apart = np.diff(np.flatnonzero(lasting >= _LONG * lasting.max()))
    regular = len(apart) >= _FEWEST - 1 and (apart == apart[0]).all() and apart[0] > 1
    return {"loader_workers": int(apart[0]) if regular else -1}


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


def device_missing(trace: Trace, steps: Steps) -> Evidence | None:
    """Return why the device's part of the steps is missing; None: it is there."""
    captured = _captures(trace).covered(steps.start, steps.end).sum() / max(steps.total, 1)
    if captured > _CAPTURED:
        return fact("capturing-graphs", part=float(captured))
    if not steps.known and much_start_up(trace, Intervals(steps.start, steps.end)):
        return fact("start-up-mostly")
    made, shown = launches(trace, steps)
    lost = 1.0 - shown / made if made else 0.0
    if not trace.has_device:
        on_device = len(trace.runtime) or trace.metadata.get("deviceProperties")
        return fact("cut-before-device") if trace.cut_off and on_device else None
    if trace.cut_off and lost > _MISSING_FROM_CUT:
        return fact("cut-within-device", part=lost)
    if lost > _MISSING:
        return fact("kernels-missing", missing=made - shown, launches=made)
    return None


def _captures(trace: Trace) -> Intervals:
    """Return when launches go into a graph of CUDA or HIP."""
    calls = trace.runtime
    begins = np.sort(calls.start[named(trace, calls, lambda name: "BeginCapture" in name)])
    ends = np.sort(calls.end[named(trace, calls, lambda name: "EndCapture" in name)])
    place = np.searchsorted(ends, begins)
    return union(begins[place < len(ends)], ends[place[place < len(ends)]])


def doubts_about(trace: Trace, missing: Evidence | None = None) -> list[Evidence]:
    """Return facts for the report, but that of `missing`; empty: nothing is wrong."""
    if missing is not None:
        return []
    if trace.has_device:
        return [doubt for doubt in (_silent_graphs(trace), _unlaunched(trace)) if doubt]
    if trace.cut_off:
        return [fact("no-gpu-events-in-part")]
    return [fact("no-gpu-events")]


def _silent_graphs(trace: Trace) -> Evidence | None:
    graphs = named(trace, trace.runtime, lambda name: "GraphLaunch" in name)
    launched = trace.runtime["correlation"][graphs]
    silent = int((~np.isin(launched, trace.device["correlation"])).sum())
    if not silent:
        return None
    return fact("silent-graphs", silent=silent, launches=len(launched))


def _unlaunched(trace: Trace) -> Evidence | None:
    calls = trace.runtime["correlation"]
    if np.isin(trace.device["correlation"], calls[calls >= 0]).any():
        return None
    return fact("launches-unnamed")
