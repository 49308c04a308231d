"""Loops of the user's own within a step, and what they hold of it. Pure."""

from collections.abc import Sequence

from torchdoctor.queries.hot_calls import (
    LEARNING,
    SampledCode,
    is_sampled_enough,
    sampled_code,
    sampled_share,
)
from torchdoctor.queries.lookup import overhead_share
from torchdoctor.queries.stacks import by_function, function_of
from torchdoctor.schema import Recording, StackSample

_FEWEST_OPERATORS = 300  # of a step, where they and not Python take the time
_PART = 0.5  # of the loop's share, that small operators and Python take at least


def inner_loops(recording: Recording) -> list[SampledCode]:
    """Return loops within a step over many tiny pieces of work, the largest first.

    A loop over layers or blocks, whose operators are large, is none of them: what its lines hold
    has to be small operators and Python.
    """
    stacks = recording.main.stacks
    overhead = overhead_share(recording)
    calls = recording.trace.operator_calls_per_step if recording.trace is not None else None
    small = overhead or 0.0 if (calls or 0.0) >= _FEWEST_OPERATORS else 0.0
    if not is_sampled_enough(recording):
        return []
    base = _loops_of_calls(recording) if recording.infers else _loops_of_training(stacks)
    rows = [row for row in stacks if row.loops > base.get(function_of(row), 0)]
    rows = [row for row in rows if row.phase not in LEARNING]
    loops = []
    for loop in sampled_code(recording, by_function(rows)):
        python = sampled_share(recording, [row for row in loop.rows if row.in_own_line])
        if max(python, min(small, loop.share)) >= _PART * loop.share > 0:
            loops.append(loop)
    return loops


def _loops_of_training(stacks: Sequence[StackSample]) -> dict[tuple[str, str], int]:
    """Return how many loops stand around the training's own lines, by function."""
    base: dict[tuple[str, str], int] = {}
    for row in stacks:
        if row.phase in LEARNING:
            base[function_of(row)] = max(base.get(function_of(row), 0), row.loops)
    return base


def _loops_of_calls(recording: Recording) -> dict[tuple[str, str], int]:
    """Return how many loops stand around the lines that call a model, by function: requests."""
    calls = [model.call for model in recording.main.models if model.call is not None]
    lines = {(call.location.file, call.location.line) for call in calls}
    base: dict[tuple[str, str], int] = {}
    for row in recording.main.stacks:
        if (row.location.file, row.location.line) in lines:
            base[function_of(row)] = max(base.get(function_of(row), 0), row.loops)
    return base
