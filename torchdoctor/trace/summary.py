"""A trace in figures: columns -> `records.TraceStatistics`."""

from typing import Any

import numpy as np

from torchdoctor.trace.calls import allocation, runtime_calls
from torchdoctor.trace.columns import Trace
from torchdoctor.trace.compilation import pointwise_chains, traced_compilation
from torchdoctor.trace.device import summarise_copies, summarise_device
from torchdoctor.trace.doubts import device_missing, doubts_about
from torchdoctor.trace.exchange import collective_kinds, gradient_exchange
from torchdoctor.trace.operators import summarise_operators
from torchdoctor.trace.products import float32_matrix_s, matrix_work
from torchdoctor.trace.program import backend_of, has_engine, optimizes, platform, trains
from torchdoctor.trace.python import python_places
from torchdoctor.trace.start_up import unusual_part
from torchdoctor.trace.threads import is_loader, named, of_fetching_thread
from torchdoctor.trace.timeline import BRANCHES, Timeline, build_timeline
from torchdoctor.trace.what_if import what_if
from torchdoctor.words import Shares, TraceStatistics
from torchdoctor.words.intervals import Intervals

_LONG = 0.3  # of the longest wait: the others found their batch ready
_FEWEST = 3  # long waits, equally far apart


def summarise(trace: Trace, timeline: Timeline | None = None) -> TraceStatistics:
    """Return all figures of one trace, means per step; without marks it is one span."""
    timeline = timeline or build_timeline(trace)
    steps, count = timeline.steps, len(timeline.steps)
    fields = summarise_operators(trace, timeline) | allocation(trace, timeline)
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
        step_times_s=[float(x) / 1e9 for x in (steps.end - steps.start)] if steps.known else [],
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
        what_if=what_if(trace, timeline, [*trace.doubts, *(about if trace.has_device else [])]),
        doubts=[*trace.doubts, *steps.doubts, *about],
        trains=trains(trace),
        optimizes=optimizes(trace),
        has_engine=has_engine(trace),
        platform=platform(trace),
        **backend_of(trace, timeline),
        **_loading(trace, timeline),
        **fields,
    )


def _host_shares(timeline: Timeline, outside_s: float, device_unknown: bool) -> Shares:
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
