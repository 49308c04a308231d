"""A few usual steps as lanes: what was under way when, by the probe's events or by a trace."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdoctor.observe.events import Events
from torchdoctor.observe.steps import PHASES, phase_after
from torchdoctor.schema.figures import PHASE_LABELS
from torchdoctor.schema.intervals import Intervals, join, subtract, union
from torchdoctor.trace.columns import Table, Trace, named
from torchdoctor.trace.loop_marks import is_step, of_fetching_thread
from torchdoctor.trace.timeline import build_timeline

_STEPS = 3
# The second is how traces of 2021 and before name it.
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|\w+Backward\d*$|torch::autograd::Acc")
_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")


@dataclass(frozen=True, kw_only=True)
class StepLanes:
    """Consecutive steps; times are ns since the first of them began."""

    first: int  # number of the first step
    edges: NDArray[np.int64]  # beginnings of the steps and the end of the last
    lanes: dict[str, Intervals]  # label -> what of that time it covers, if anything
    steps_known: bool = True  # False: one span stands for a whole trace


def lanes_of_events(events: Events, edges: np.ndarray, warmup: int) -> StepLanes | None:
    """Return phases of the main process in usual steps after `warmup`; None: no whole step."""
    steps = len(edges) - 1
    if steps < 1:
        return None
    times = events.t_ns[edges]
    first = _usual(np.diff(times), min(warmup, steps - 1))
    phase = phase_after(events)
    lanes = {}
    for name, label in PHASE_LABELS.items():
        rows = np.flatnonzero(phase[:-1] == PHASES.index(name))
        lanes[label] = union(events.t_ns[rows], events.t_ns[rows + 1])
    return _cut(first, times, lanes)


def lanes_of_trace(trace: Trace) -> StepLanes | None:
    """Return what host and devices did in usual steps of a trace; None: it has no length."""
    timeline = build_timeline(trace)
    steps = timeline.steps
    if not len(steps) or steps.total <= 0:
        return None
    times = np.append(steps.start, steps.end[-1])
    first = _usual(np.diff(times), 0)
    loading = timeline.branches["data_loader"]
    lanes = {"waiting for data": loading, **_host_lanes(trace, loading)}
    if trace.has_device:
        lanes["copies"] = join(timeline.branches["memcpy"], timeline.branches["memset"])
        lanes["GPU kernels"] = timeline.branches["gpu"]
    lanes["collectives"] = timeline.collectives
    return _cut(first, times, lanes, steps.known)


def _host_lanes(trace: Trace, loading: Intervals) -> dict[str, Intervals]:
    """Return operators of threads that do not only fetch; forward is all that is nothing else."""

    def where(table: Table, wanted: Callable[[str], object]) -> Intervals:
        return table.spans(named(trace, table, wanted) & ~of_fetching_thread(trace, table))

    in_backward = where(trace.operators, _BACKWARD.match)
    in_optimizer = join(*(where(t, lambda name: name.startswith(_OPTIMIZER)) for t in trace.ranges))
    rest = where(trace.operators, lambda name: not is_step(name))
    return {
        "forward and other": subtract(rest, join(in_backward, in_optimizer, loading)),
        "backward": in_backward,
        "optimizer": in_optimizer,
    }


def _usual(durations: np.ndarray, warmup: int) -> int:
    """Return the first of consecutive steps whose time together is nearest to the median's."""
    steps = min(_STEPS, len(durations) - warmup)
    sums = np.convolve(durations[warmup:], np.ones(steps), mode="valid")
    usual = steps * float(np.median(durations[warmup:]))
    return warmup + int(np.argmin(np.abs(sums - usual)))


def _cut(
    first: int, times: np.ndarray, lanes: dict[str, Intervals], steps_known: bool = True
) -> StepLanes:
    edges = times[first : first + _STEPS + 1]
    begin = int(edges[0])
    end = int(edges[-1])
    inside = {
        label: union(*(np.clip(times, begin, end) - begin for times in (lane.start, lane.end)))
        for label, lane in lanes.items()
    }
    shown = {label: lane for label, lane in inside.items() if len(lane)}
    return StepLanes(first=first, edges=edges - begin, lanes=shown, steps_known=steps_known)
