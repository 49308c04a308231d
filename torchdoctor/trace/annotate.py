"""A copy of a trace with tracks of our own, for ui.perfetto.dev and chrome://tracing.

The original's events are copied after ours; what is no valid JSON is mended, or left out.
"""

import contextlib
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec
import numpy as np

from torchdoctor.trace.files import TraceFile
from torchdoctor.trace.kinds import OUR_CATEGORY
from torchdoctor.trace.timeline import Timeline
from torchdoctor.words import Finding
from torchdoctor.words.errors import UsageError
from torchdoctor.words.figures import SHARE_LABELS
from torchdoctor.words.record_files import replacing

_PROCESS = 2_000_000_000  # no process id of a system
_STEPS, _EXPOSED, _FINDINGS = 1, 2, 3
_TRACKS = {1: "steps", 2: "what the step is in (exposed time)", 3: "findings"}
_SHORTEST_NS = 1000  # shorter ones nobody sees, and there may be millions


def annotate(
    source: Path, target: Path, timeline: Timeline, base_us: float, findings: Sequence[Finding]
) -> None:
    """Write `target`: the trace and our tracks; compressed where its name ends in .gz.

    The trace is copied as far as it can be read; the timeline counts from `base_us` on its clock.
    Raise UsageError if `source` is no trace or `target` cannot be written.
    """
    ours = b",\n".join(msgspec.json.encode(event) for event in _events(timeline, base_us, findings))
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the trace itself: name another file to annotate it into.")
    try:
        with source.open("rb") as stream, replacing(target) as file:
            trace = TraceFile(stream, str(source))
            with contextlib.ExitStack() as stack:
                out: IO[bytes] = file
                if target.name.endswith(".gz"):
                    packed = gzip.GzipFile("", "wb", compresslevel=1, fileobj=file)
                    out = cast(BinaryIO, stack.enter_context(packed))
                _copy(trace, ours, out)
    except OSError as error:
        raise UsageError(
            f"Cannot write {target} ({error.strerror or error}): free space or name another file."
        ) from error


def _copy(trace: TraceFile, ours: bytes, out: IO[bytes]) -> None:
    """Write our events and those of the trace, and its metadata on the side where it stood."""
    runs = trace.runs()
    run = next(runs, None)  # what stands before the events is known from here on
    head = {**trace.metadata, "traceEvents": []}
    out.write(b"[" if trace.is_list else msgspec.json.encode(head)[: -len(b"]}")])
    out.write(b"\n" + ours)
    while run is not None:  # other bytes than UTF-8 stand in strings that nothing reads
        out.write(b",\n" + bytes(run.text).decode("utf-8", "replace").encode())
        run = next(runs, None)
    tail = {key: value for key, value in trace.metadata.items() if key not in head}
    end = b"" if trace.is_list else b"," + msgspec.json.encode(tail)[1:] if tail else b"}"
    out.write(b"\n]" + end)


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
        event = {"ph": "X", "cat": OUR_CATEGORY, "name": title, "pid": _PROCESS, "tid": track}
        return {**event, "ts": at_us, "dur": lasting_us, "args": args}

    spans = zip(steps.start.tolist(), steps.end.tolist(), strict=True)
    for number, (start, end) in enumerate(spans):
        shares = {
            branch: round(float(spent[number]) / max(end - start, 1), 4)
            for branch, spent in timeline.exposed.items()
        }
        yield slice_(_STEPS, f"step {number}" if steps.known else "the trace", start, end, **shares)
    for branch, exposed in timeline.exposed_intervals.items():
        drawn = exposed.end - exposed.start >= _SHORTEST_NS
        columns = exposed.start[drawn].tolist(), exposed.end[drawn].tolist()
        for start, end in zip(*columns, strict=True):
            yield slice_(_EXPOSED, SHARE_LABELS[branch], start, end)
    for finding in findings:
        share = finding.share_of_step
        title = finding.check if share is None else f"{finding.check} {share:.0%}"
        evidence = " ".join(finding.evidence)
        first, last = int(steps.start.min()), int(steps.end.max())
        yield slice_(_FINDINGS, title, first, last, evidence=evidence)
