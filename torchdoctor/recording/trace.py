"""A Kineto trace -> columns, streaming: .json, .json.gz or a binary stream."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from torchdoctor.errors import NoTrace
from torchdoctor.recording.trace_columns import Columns, Trace
from torchdoctor.recording.trace_files import BLOCK_BYTES, TraceFile
from torchdoctor.recording.trace_processes import of_one_process


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
    if not columns.of_profiler:
        cut = " before it was cut off" if file.doubts else ""
        what = f"{name} holds no operator, driver call or GPU work{cut}"
        raise NoTrace(what, "record at least one step, with ProfilerActivity.CPU")
    trace = of_one_process(columns.trace(name))
    trace.metadata = file.metadata
    trace.doubts = [*file.doubts, *trace.doubts]
    if file.damaged:
        trace.doubts.append(f"{file.damaged} events of {name} are damaged and were skipped.")
    return trace
