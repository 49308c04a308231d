"""Calls noted in the analysed steps after the profiler window, as checks and fixes ask. Pure."""

import ast
import functools
from pathlib import Path

from torchdoctor.queries.lookup import share_of_seconds
from torchdoctor.schema import Location, Recording, Symptom, Symptoms, TensorCall, fact

ARRAYS = ("array-copy", "arrays-copy")
TO_DEVICE = ("made-then-moved", "moved-again")
# How the sentence of a call ends, whose fact is named as its kind.
CALL_COST = "{times:.1f} times {a_step}, {bytes:memory} in {seconds:seconds}."
_NAMED = 3
_MUCH = 0.1  # of the step


def calls_of(recording: Recording, *kinds: str) -> list[TensorCall]:
    """Return the calls of these kinds, the longest first."""
    calls = [call for call in recording.main.tensor_calls if call.kind in kinds]
    return sorted(calls, key=lambda call: -call.host_s)


def element_loops(recording: Recording) -> list[TensorCall]:
    """Return the loops through tensors by element, the longest first.

    Each line of a loop was noted with the time of the whole turn. Where the source cannot be read,
    lines of a function that were called as often are of one loop.
    """
    longest: dict[tuple[str, str, int], TensorCall] = {}
    for call in calls_of(recording, "element"):
        where = call.location
        loop = _loop_around(where)
        key = loop if loop is not None else round(call.calls_per_step)
        longest.setdefault((where.file, where.function or "", key), call)
    return list(longest.values())


def _loop_around(location: Location) -> int | None:
    """Return the first line of the innermost loop around a line; None: it is not known."""
    try:
        loops = _loops(Path(location.file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    return max((first for first, last in loops if first < location.line <= last), default=None)


@functools.lru_cache(maxsize=8)
def _loops(source: str) -> list[tuple[int, int]]:
    """Return the first and the last line of each loop of a source."""
    loops = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.For, ast.While)):
            loops.append((node.lineno, node.end_lineno or node.lineno))
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            loops.append((node.lineno - 1, node.end_lineno or node.lineno))  # it has no head
    return loops


def share_of_step(recording: Recording, calls: list[TensorCall]) -> float | None:
    """Return the share of the step that the calls hold the host; None: not measured."""
    return share_of_seconds(recording, sum(call.host_s for call in calls))


def costly_calls(recording: Recording, calls: list[TensorCall], least: float) -> Symptoms:
    """Yield a symptom with the longest calls, if all take at least a share `least` of the step."""
    share = share_of_step(recording, calls)
    if share is not None and share >= least:
        yield Symptom(
            share=share,
            evidence=[
                fact(
                    call.kind,
                    location=call.location,
                    name=call.name,
                    times=call.calls_per_step,
                    bytes=call.bytes_per_step,
                    seconds=call.host_s,
                )
                for call in calls[:_NAMED]
            ],
            location=calls[0].location,
            severity="high" if share >= _MUCH else "moderate",
        )
