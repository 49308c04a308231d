"""A Kineto trace -> columns of one process, streaming: .json, .json.gz or a binary stream."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from torchdoctor.trace.columns import Columns, Ints, Table, Trace
from torchdoctor.trace.files import BLOCK_BYTES, TraceFile
from torchdoctor.trace.nesting import launch_rows
from torchdoctor.trace.threads import is_step, named
from torchdoctor.words.errors import NoTrace

_BEFORE_NS = 1_000  # by rounding an event may begin this much before its launch
Process = int | str


def of_one_process(trace: Trace) -> Trace:
    """Return the trace of the process with most steps, with a doubt if there are several."""
    steps = _steps(trace)
    if len(steps) < 2:
        return trace
    process = max(steps, key=lambda number: steps[number])
    apart = {number: _host(trace, number) for number in steps}
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
    """Return how many steps are marked in each process."""
    marks: Counter[Process] = Counter()
    for table in trace.ranges:
        for thread in table.thread[named(trace, table, is_step)].tolist():
            marks[trace.threads[thread][0]] += 1
    return marks


def _host(trace: Trace, process: Process) -> Trace:
    """Return the trace without the host events of other processes."""
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
    """Return the work on devices that this process drives; if it drives none, what it launched.

    Correlation ids begin at the same number in each process, so that an id alone says little: a
    device is driven by whoever launched most of its work before it began, and shortly before.
    """
    launches = {pid: launch_rows(host) for pid, host in apart.items()}
    device = trace.device["device"]
    driven = [
        number
        for number in np.unique(device).tolist()
        if process
        == min(apart, key=lambda pid: _distance(apart[pid], launches[pid], device == number))
    ]
    return np.isin(device, driven) if driven else launches[process] >= 0


def _distance(host: Trace, launch: Ints, rows: NDArray[np.bool_]) -> tuple[float, float]:
    """Return how badly a process fits as the launching one: share unfit, usual delay in ns."""
    known = rows & (launch >= 0)
    if not known.any():
        return 1.0, np.inf
    late = host.device.start[known] - host.runtime.start[launch[known]]
    fits = late >= -_BEFORE_NS
    unfit = 1.0 - float(fits.sum()) / float(rows.sum())
    return round(unfit, 2), float(np.median(late[fits])) if fits.any() else np.inf


def read_trace(
    source: Path | BinaryIO, name: str | None = None, block_bytes: int = BLOCK_BYTES
) -> Trace:
    """Read one trace, as far as it goes.

    Raise NoTrace if the source cannot be opened, or is no trace.
    """
    if isinstance(source, Path):
        try:
            with source.open("rb") as stream:
                return _read_stream(stream, name or str(source), block_bytes)
        except OSError as error:
            problem = f"{source} cannot be read ({error.strerror or error})"
            raise NoTrace(problem, "pass a file that you may read") from error
    return _read_stream(source, name or "standard input", block_bytes)


def _read_stream(stream: BinaryIO, name: str, block_bytes: int) -> Trace:
    file = TraceFile(stream, name, block_bytes)
    columns = Columns()
    for slices in file.slices():
        columns.add(slices)
    of_profiler = columns.of_profiler
    trace = columns.trace(name)
    if not of_profiler or _is_empty(trace):
        raise _nothing_of_torch(file, columns)
    trace = of_one_process(trace)
    doubts = [*file.doubts, *trace.doubts]
    if file.damaged:
        doubts.append(f"{file.damaged} events of {name} are damaged and were skipped.")
    return replace(trace, metadata=file.metadata, cut_off=bool(file.doubts), doubts=doubts)


def _is_empty(trace: Trace) -> bool:
    """Return True if nothing but marks of steps was recorded."""
    if len(trace.operators) or len(trace.runtime) or trace.has_device:
        return False
    return all(is_step(trace.names[name]) for name in set(trace.annotations.name.tolist()))


def _nothing_of_torch(file: TraceFile, columns: Columns) -> NoTrace:
    """Return why there is nothing to diagnose, and what helps."""
    cut = " before it was cut off" if file.doubts and columns.events else ""
    problem = f"{file.name} holds no operator, driver call or GPU work{cut}"
    if file.doubts and not columns.events:
        problem = f"{file.name} holds no event that can be read"
        return NoTrace(problem, "pass a file that torch.profiler's export_chrome_trace wrote")
    if set(columns.unknown) == {"none"}:
        advice = (
            'its events lack the category ("cat") that torch.profiler writes, pass its own file'
        )
    elif not columns.events and file.halves:
        advice = (
            "it holds begin and end events (B, E) where torch.profiler writes complete ones (X), "
            "pass its own file"
        )
    else:
        advice = (
            "record at least one step, with ProfilerActivity.CPU, and where the schedule repeats, "
            "with repeat=1 or a file for each window, as a later window without work overwrites "
            "the file"
        )
    return NoTrace(problem, advice)
