"""What the analysed steps after the profiler window showed, as checks and fixes ask. Pure."""

from __future__ import annotations

from torchdoctor.words.program import KeptGraph, TensorCall
from torchdoctor.words.recording import Recording

ARRAYS = ("array-copy", "arrays-copy")
TO_DEVICE = ("made-then-moved", "moved-again")


def calls_of(recording: Recording, *kinds: str) -> list[TensorCall]:
    """Calls of these kinds, those that take longest first."""
    found = [call for call in recording.main.tensor_calls if call.kind in kinds]
    return sorted(found, key=lambda call: -call.host_s)


def element_loops(recording: Recording) -> list[TensorCall]:
    """Loops through tensors element by element, those that take longest first.

    A line that indexes and reads the value is one loop, not two; so are lines of one function that
    are run equally often, each of which took what the whole turn takes.
    """
    longest: dict[tuple[str, str, float], TensorCall] = {}
    for call in calls_of(recording, "element"):
        where = call.location
        longest.setdefault((where.file, where.function or "", round(call.calls_per_step)), call)
    return list(longest.values())


def share_of_step(recording: Recording, calls: list[TensorCall]) -> float | None:
    """Share of the step that the calls hold the host; None: steps were not measured."""
    steps = recording.steps
    if steps is None or steps.mean_s <= 0:
        return None
    return min(sum(call.host_s for call in calls) / steps.mean_s, 1.0)


def summed_graphs(recording: Recording) -> list[KeptGraph]:
    """Graphs kept by a sum at a known line, which can be cut where it adds."""
    return [x for x in recording.main.kept_graphs if x.kind == "sum" and x.location is not None]


def how_often(call: TensorCall) -> str:
    """ "1.0 times a step, 3.8 MiB in 4.00 ms"."""
    size = size_words(call.bytes_per_step)
    return f"{call.calls_per_step:.1f} times a step, {size} in {call.host_s * 1e3:.2f} ms"


def size_words(size_bytes: float) -> str:
    """ "3.2 MiB"."""
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= one:
            return f"{size_bytes / one:.1f} {unit}"
    return f"{size_bytes:.0f} bytes"
