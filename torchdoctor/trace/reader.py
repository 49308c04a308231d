"""A Kineto trace -> columns of one process, streaming: .json, .json.gz or a binary stream."""

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from torchdoctor.schema.errors import NoTrace
from torchdoctor.schema.evidence import fact
from torchdoctor.schema.record_files import open_regular
from torchdoctor.trace.collector import Collector
from torchdoctor.trace.columns import Trace, named
from torchdoctor.trace.files import BLOCK_BYTES, TraceFile
from torchdoctor.trace.loop_marks import is_step, threads_of

_OWN = "pass a file that torch.profiler's export_chrome_trace wrote"


def read_trace(
    source: Path | BinaryIO, name: str | None = None, block_bytes: int = BLOCK_BYTES
) -> Trace:
    """Read one trace as far as it goes; raise NoTrace if it is none, or holds several processes."""
    if isinstance(source, Path):
        try:
            with open_regular(source) as stream:
                return _read_stream(stream, name or str(source), block_bytes)
        except OSError as error:
            problem = f"{source} cannot be read ({error.strerror or error})"
            advice = "pass a file that you may read, or - for the standard input"
            raise NoTrace(problem, advice) from error
    return _read_stream(source, name or "standard input", block_bytes)


def _read_stream(stream: BinaryIO, name: str, block_bytes: int) -> Trace:
    file = TraceFile(stream, name, block_bytes)
    collected = Collector()
    for run in file.runs():
        collected.add(run.slices)
    of_profiler = collected.of_profiler
    trace = collected.trace(name)
    worked = len(trace.operators) or len(trace.runtime) or trace.has_device
    if not of_profiler or not (worked or not named(trace, trace.annotations, is_step).all()):
        raise _nothing_of_torch(file, collected)
    if not collected.lasting:
        raise NoTrace(
            f"{name} holds no usable event: none has a duration that can be (all are missing or "
            "negative)",
            _OWN,
        )
    marked = [trace.threads[thread][0] for thread in np.flatnonzero(threads_of(trace, is_step))]
    if len(set(marked)) > 1:  # their ids of launches begin at the same number
        raise NoTrace(
            f"{name} holds steps of {len(set(marked))} processes (ranks merged into one file)",
            "pass one file for each rank",
        )
    doubts = [*file.doubts, *trace.doubts]
    if file.damaged:
        doubts.append(fact("events-damaged", events=file.damaged, file=name))
    return replace(trace, metadata=file.metadata, cut_off=bool(file.doubts), doubts=doubts)


def _nothing_of_torch(file: TraceFile, collected: Collector) -> NoTrace:
    """Return why there is nothing to diagnose, and what helps."""
    if file.doubts and not collected.events:
        return NoTrace(f"{file.name} holds no event that can be read", _OWN)
    cut = " before it was cut off" if file.doubts else ""
    advice = (
        "record at least one step, with ProfilerActivity.CPU, and where the schedule repeats, with "
        "repeat=1 or a file for each window, as a later window without work overwrites the file"
    )
    if set(collected.unknown) == {"none"} or not collected.events:
        advice = _OWN
    return NoTrace(f"{file.name} holds no operator, driver call or GPU work{cut}", advice)
