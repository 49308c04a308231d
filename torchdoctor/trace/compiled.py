"""What a trace shows of torch.compile: compiling within the steps, and where graphs break."""

from __future__ import annotations

import re

import numpy as np

from torchdoctor.facts.user_frames import FRAME
from torchdoctor.trace.columns import Trace
from torchdoctor.trace.timeline import Timeline
from torchdoctor.words import Location, TracedCompilation
from torchdoctor.words.intervals import union

_REGION = re.compile(r"Torch-Compiled Region(: |$)")
# Names of torch 2.1 to today; a frame's compilation, and all that takes time in compiling.
_FRAME = re.compile(r"(_compile\.)?_?compile_inner \(dynamo_timed\)|_compile \(dynamo_timed\)")
_TIMED = re.compile(r".*\(dynamo_timed\)|entire_(frame|backward)_compile")
_VERSION = re.compile(r"(?:entire_frame_compile|dynamo)_data: .*compile_id=!?\d+/(\d+)")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")


def traced_compilation(trace: Trace, timeline: Timeline) -> TracedCompilation | None:
    """Means over the steps; None where nothing compiled runs or is compiled in them."""
    steps, table = timeline.steps, trace.operators
    within = table.where(steps.index(table.start) >= 0)
    regions = _named(trace, within.name, _REGION)
    timed = within.where(_named(trace, within.name, _TIMED))
    if not regions.any() and not len(timed):
        return None
    compiling = union(timed.start, timed.end)
    in_each = compiling.covered(steps.start, steps.end)
    frames = _named(trace, timed.name, _FRAME)
    return TracedCompilation(
        compiles_per_step=float(frames.sum()) / len(steps),
        compile_s=float(in_each.sum()) / len(steps) / 1e9,
        steps_with=int((in_each > 0).sum()),
        regions_per_step=float(regions.sum()) / len(steps),
        again=_again(trace, timeline, int(frames.sum())),
        resumed=_resumed(trace),
    )


def _named(trace: Trace, names: np.ndarray, pattern: re.Pattern[str]) -> np.ndarray:
    matches = np.array([pattern.match(name) is not None for name in trace.names], dtype=bool)
    return matches[names] if len(names) else np.zeros(0, dtype=bool)


def _again(trace: Trace, timeline: Timeline, frames: int) -> int | None:
    """Compilations of a version after the first; before torch 2.6 nothing says which it is."""
    table = trace.annotations
    inside = table.where(timeline.steps.index(table.start) >= 0)
    found: dict[str, int] = {}
    for name in inside.name:
        match = _VERSION.match(trace.names[name])
        if match is not None:
            found[match.string.partition("compile_id=")[2]] = int(match[1])
    if frames and not found:
        return None
    return sum(version > 0 for version in found.values())


def _resumed(trace: Trace) -> list[Location]:
    """Lines after which the rest of a function runs as one of its own, by the trace's stacks."""
    found: dict[tuple[str, int], Location] = {}
    for name in np.unique(trace.python.name):
        frame = FRAME.fullmatch(trace.names[name])
        resumed = _RESUMED.match(frame["function"]) if frame is not None else None
        if frame is not None and resumed is not None:
            line = int(resumed[2])
            found[frame["file"], line] = Location(
                file=frame["file"], line=line, function=resumed[1]
            )
    return [found[key] for key in sorted(found)]
