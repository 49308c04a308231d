"""Functions of the user's own that hold much of the step, by the sampled stacks."""

from collections.abc import Iterable
from dataclasses import dataclass

from torchdoctor.words import Location, Recording, StackSample

LEAST_SHARE = 0.05  # of the step, from where on an experiment on a call may show something
_FEWEST = 20  # samples, of fewer nothing is said
_WHOLE_PASS = ("forward", "training_step", "__call__", "<module>", "<lambda>")
_LEARNING = ("backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class HotCall:
    """A function, and how much of the sampled time its own lines hold."""

    share: float
    rows: list[StackSample]  # the most frequent first

    @property
    def top(self) -> Location:
        """The line that most samples show."""
        return self.rows[0].location

    @property
    def function(self) -> str:
        """Its name."""
        return self.top.function or ""

    @property
    def phases(self) -> set[str]:
        """The phases that its samples fall into."""
        return {row.phase for row in self.rows}

    @property
    def is_called(self) -> bool:
        """Return True if it is neither a whole pass nor the loop: its call can be answered."""
        return self.function not in _WHOLE_PASS and not self.function.startswith("<")


def hot_calls(recording: Recording) -> list[HotCall]:
    """Return the functions that hold a twentieth of the step or more, the largest first.

    The function that learns is the loop, whose call nobody could spare.
    """
    stacks = recording.main.stacks
    total = sum(row.count for row in stacks)
    if total < _FEWEST:
        return []
    loops = {_function(row) for row in stacks if row.phase in _LEARNING}
    if not loops:
        return []  # any of them may be the loop itself
    groups: dict[tuple[str, str], list[StackSample]] = {}
    for row in stacks:
        if _function(row) not in loops:
            groups.setdefault(_function(row), []).append(row)
    calls = [
        HotCall(share=_count(rows) / total, rows=sorted(rows, key=lambda row: -row.count))
        for rows in groups.values()
    ]
    calls = [call for call in calls if call.is_called and call.share >= LEAST_SHARE]
    return sorted(calls, key=lambda call: -call.share)


def _function(row: StackSample) -> tuple[str, str]:
    return row.location.file, row.location.function or ""


def _count(rows: Iterable[StackSample]) -> int:
    return sum(row.count for row in rows)
