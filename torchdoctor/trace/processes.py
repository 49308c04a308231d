"""Ranks that were merged into one file: the events of one process, so that steps do not mix."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Ints, Table, Trace
from torchdoctor.trace.threads import is_step, named
from torchdoctor.trace.timeline import launch_rows

_BEFORE_NS = 1_000  # by rounding an event may begin this much before its launch

Process = int | str


def of_one_process(trace: Trace) -> Trace:
    """The trace, or of one with steps of several processes the one with the most, with a doubt."""
    steps = _steps(trace)
    if len(steps) < 2:
        return trace
    process = max(steps, key=lambda one: steps[one])
    apart = {one: _host(trace, one) for one in steps}
    own = apart[process]
    doubt = (
        f"The trace holds steps of {len(steps)} processes (ranks merged into one file); the "
        f"figures are of process {process}. Pass one file for each rank to compare them."
    )
    return replace(
        own,
        device=trace.device.where(_device_rows(trace, apart, process)),
        doubts=[*trace.doubts, doubt],
    )


def _steps(trace: Trace) -> Counter[Process]:
    """How many steps are marked in each process."""
    wanted = np.array([is_step(name) for name in trace.names], dtype=bool)
    found: Counter[Process] = Counter()
    for table in (trace.annotations, trace.operators):
        for thread in table.thread[named(trace, table, wanted)].tolist():
            found[trace.threads[thread][0]] += 1
    return found


def _host(trace: Trace, process: Process) -> Trace:
    """Without the host events of other processes."""
    ours = np.array([pid == process for pid, _ in trace.threads], dtype=bool)

    def part(table: Table) -> Table:
        return table.where(ours[table.thread]) if len(table) else table

    return replace(
        trace,
        operators=part(trace.operators),
        annotations=part(trace.annotations),
        runtime=part(trace.runtime),
        python=part(trace.python),
    )


def _device_rows(trace: Trace, apart: dict[Process, Trace], process: Process) -> NDArray[np.bool_]:
    """Work on the devices that this process drives; where it drives none, what it launched.

    Correlation ids begin at the same number in each process, so that an id alone says little: a
    device is driven by whoever launched most of its work before it began, and shortly before.
    """
    launches = {one: launch_rows(host) for one, host in apart.items()}
    device = trace.device["device"]
    driven = [
        number
        for number in np.unique(device).tolist()
        if process
        == min(apart, key=lambda one: _distance(apart[one], launches[one], device == number))
    ]
    return np.isin(device, driven) if driven else launches[process] >= 0


def _distance(host: Trace, launch: Ints, rows: NDArray[np.bool_]) -> tuple[float, float]:
    """How badly a process fits as the one that launched these: share unfit, usual delay in ns."""
    known = rows & (launch >= 0)
    if not known.any():
        return 1.0, np.inf
    late = host.device.start[known] - host.runtime.start[launch[known]]
    fits = late >= -_BEFORE_NS
    unfit = 1.0 - float(fits.sum()) / float(rows.sum())
    return round(unfit, 2), float(np.median(late[fits])) if fits.any() else np.inf
