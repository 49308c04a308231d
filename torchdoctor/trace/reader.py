"""A Kineto trace -> columns, streaming: .json, .json.gz or a binary stream."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from torchdoctor.trace.columns import Columns, Trace
from torchdoctor.trace.files import BLOCK_BYTES, TraceFile
from torchdoctor.trace.processes import of_one_process
from torchdoctor.trace.threads import is_step
from torchdoctor.words.errors import NoTrace


def read_trace(
    source: Path | BinaryIO, name: str | None = None, block_bytes: int = BLOCK_BYTES
) -> Trace:
    """Reads one trace, as far as it goes.

    Args:
        source: a file, or a binary stream such as `sys.stdin.buffer`.
        name: what messages call it; the path where there is one.
        block_bytes: how much is decoded at a time.

    Raises:
        NoTrace: it cannot be opened, or is no trace.
    """
    if isinstance(source, Path):
        try:
            with source.open("rb") as stream:
                return _read_stream(stream, name or str(source), block_bytes)
        except OSError as error:
            what = f"{source} cannot be read ({error.strerror or error})"
            raise NoTrace(what, "pass a file that you may read") from error
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
    trace.metadata = file.metadata
    trace.cut_off = bool(file.doubts)
    trace.doubts = [*file.doubts, *trace.doubts]
    if file.damaged:
        trace.doubts.append(f"{file.damaged} events of {name} are damaged and were skipped.")
    return trace


def _is_empty(trace: Trace) -> bool:
    """Whether nothing but marks of steps was recorded."""
    if len(trace.operators) or len(trace.runtime) or trace.has_device:
        return False
    return all(is_step(trace.names[name]) for name in set(trace.annotations.name.tolist()))


def _nothing_of_torch(file: TraceFile, columns: Columns) -> NoTrace:
    """Why there is nothing to diagnose, and what helps."""
    cut = " before it was cut off" if file.doubts and columns.events else ""
    what = f"{file.name} holds no operator, driver call or GPU work{cut}"
    if file.doubts and not columns.events:
        what = f"{file.name} holds no event that can be read"
        return NoTrace(what, "pass a file that torch.profiler's export_chrome_trace wrote")
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
    return NoTrace(what, advice)
