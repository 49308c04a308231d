"""A copy of a trace with tracks of our own, for ui.perfetto.dev and chrome://tracing.

The original's events are copied as they stand, unread; ours go before them.
"""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec
import numpy as np

from torchdoctor.errors import UsageError
from torchdoctor.record_files import replacing
from torchdoctor.recording.timeline import Timeline
from torchdoctor.recording.trace_exposed import exposed_intervals
from torchdoctor.recording.trace_files import events_start, plain_chunks
from torchdoctor.records import Finding
from torchdoctor.reports.content import SHARE_LABELS

_PROCESS = 2_000_000_000  # no process id of a system
_STEPS, _EXPOSED, _FINDINGS = 1, 2, 3
_TRACKS = {
    _STEPS: "steps",
    _EXPOSED: "what the step is in (exposed time)",
    _FINDINGS: "findings",
}
_SHORTEST_NS = 1000  # shorter ones nobody sees, and there may be millions


def annotate(
    source: Path, target: Path, timeline: Timeline, base_us: float, findings: Sequence[Finding]
) -> None:
    """Write `target`: the trace and our tracks; compressed where its name ends in .gz.

    Args:
        source: the trace; copied as far as it can be read.
        target: written whole or not at all.
        timeline: of the trace, its times in nanoseconds after `base_us`.
        base_us: microseconds, on the trace's clock.
        findings: one slice each, over the whole trace.

    Raises:
        UsageError: `source` is no trace, or `target` cannot be written.
    """
    ours = b",\n".join(msgspec.json.encode(event) for event in _events(timeline, base_us, findings))
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the trace itself: name another file to annotate it into.")
    try:
        with source.open("rb") as stream, replacing(target) as file:
            chunks = plain_chunks(stream, source.name, [])
            head, rest = _head(chunks, source)
            with _packed(file, target.name) as out:
                out.write(head + b"\n" + ours + b",\n" + rest)
                for chunk in chunks:
                    out.write(chunk)
    except OSError as error:
        raise UsageError(f"Cannot write {target} ({error.strerror or error}).") from error


def _events(
    timeline: Timeline, base_us: float, findings: Sequence[Finding]
) -> Iterator[dict[str, Any]]:
    steps = timeline.steps
    name = {"ph": "M", "pid": _PROCESS, "name": "process_name"}
    yield {**name, "args": {"name": "torchdoctor"}}
    yield {**name, "name": "process_sort_index", "args": {"sort_index": -1}}
    for track, title in _TRACKS.items():
        yield {**name, "name": "thread_name", "tid": track, "args": {"name": title}}
        yield {**name, "name": "thread_sort_index", "tid": track, "args": {"sort_index": track}}

    def slice_(track: int, title: str, start: int, end: int, **args: Any) -> dict[str, Any]:
        at_us, end_us = (round(base_us + time / 1000, 3) for time in (start, end))
        # Perfetto counts ns in a float, which at today's Unix time resolves 256 ns, and drops a
        # slice that reaches into the next one.
        resolved_us = float(np.spacing(end_us * 1000)) / 1000
        lasting_us = max(round(end_us - at_us - resolved_us, 3), 0.0)
        event = {"ph": "X", "cat": "torchdoctor", "name": title, "pid": _PROCESS, "tid": track}
        return {**event, "ts": at_us, "dur": lasting_us, "args": args}

    for number, (start, end) in enumerate(
        zip(steps.start.tolist(), steps.end.tolist(), strict=True)
    ):
        shares = {
            branch: round(float(spent[number]) / max(end - start, 1), 4)
            for branch, spent in timeline.exposed.items()
        }
        yield slice_(_STEPS, f"step {number}" if steps.known else "the trace", start, end, **shares)
    for branch, found in exposed_intervals(timeline).items():
        for row in np.flatnonzero(found.end - found.start >= _SHORTEST_NS):
            yield slice_(_EXPOSED, SHARE_LABELS[branch], int(found.start[row]), int(found.end[row]))
    for finding in findings:
        share = finding.share_of_step
        title = finding.check if share is None else f"{finding.check} {share:.0%}"
        evidence = " ".join(finding.evidence)
        first, last = int(steps.start.min()), int(steps.end.max())
        yield slice_(_FINDINGS, title, first, last, evidence=evidence)


def _head(chunks: Iterator[bytes], source: Path) -> tuple[bytes, bytes]:
    """What stands up to the first event, and what was read beyond it."""
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        start = events_start(buffer)
        if start is not None:
            return buffer[:start], buffer[start:]
    raise UsageError(f"{source} is not a PyTorch profiler trace.")


@contextlib.contextmanager
def _packed(file: BinaryIO, name: str) -> Iterator[IO[bytes]]:
    """What is written to it lands in the file, compressed where the name ends in .gz."""
    if not name.endswith(".gz"):
        yield file
        return
    with gzip.GzipFile("", "wb", compresslevel=1, fileobj=file) as stream:
        yield cast(BinaryIO, stream)
