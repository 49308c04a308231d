"""Loops of the user's own within a step, and what they hold of it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.queries.hot_calls import sampled_share
from torchdoctor.queries.lookup import overhead_share
from torchdoctor.queries.stacks import by_function
from torchdoctor.schema import Location, Recording, StackSample

_LEARNING = ("backward", "optimizer")
_FEWEST = 20  # samples, of fewer nothing is said
_FEWEST_OPERATORS = 300  # of a step, where they and not Python take the time
_PART = 0.5  # of the loop's share, that small operators and Python take at least


@dataclass(frozen=True, kw_only=True)
class InnerLoop:
    """The lines of one function that a loop goes through within a step."""

    share: float  # of the step
    rows: Sequence[StackSample]  # the most frequent first

    @property
    def location(self) -> Location:
        """The line that most samples show."""
        return self.rows[0].location


def inner_loops(recording: Recording) -> list[InnerLoop]:
    """Return loops within a step over many tiny pieces of work, the largest first.

    A loop over layers or blocks, whose operators are large, is none of them: what its lines hold
    has to be small operators and Python.
    """
    stacks = recording.main.stacks
    overhead = overhead_share(recording)
    calls = recording.trace.operator_calls_per_step if recording.trace is not None else None
    small = overhead or 0.0 if (calls or 0.0) >= _FEWEST_OPERATORS else 0.0
    if sum(row.count for row in stacks) < _FEWEST:
        return []
    base = _loops_of_training(stacks)
    rows = [row for row in stacks if row.loops > base.get(_function(row), 0)]
    rows = [row for row in rows if row.phase not in _LEARNING]
    loops = []
    for place in by_function(rows):
        own = sorted(place.rows, key=lambda row: -row.count)
        share = sampled_share(recording, own)
        python = sampled_share(recording, [row for row in own if _is_python(row)])
        if max(python, min(small, share)) >= _PART * share > 0:
            loops.append(InnerLoop(share=share, rows=own))
    return sorted(loops, key=lambda loop: -loop.share)


def _loops_of_training(stacks: Sequence[StackSample]) -> dict[tuple[str, str], int]:
    """Return how many loops stand around the training's own lines, by function."""
    base: dict[tuple[str, str], int] = {}
    for row in stacks:
        if row.phase in _LEARNING:
            base[_function(row)] = max(base.get(_function(row), 0), row.loops)
    return base


def _function(row: StackSample) -> tuple[str, str]:
    return row.location.file, row.location.function or ""


def _is_python(row: StackSample) -> bool:
    """Return True if the innermost frame is the line's own function: no library works there."""
    own = f"{Path(row.location.file).name} {row.location.function}"
    return row.leaf.endswith(own)
