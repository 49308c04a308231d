"""Functions of the user's own that hold much of the step, by the sampled stacks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchdoctor.queries import touched
from torchdoctor.queries.stacks import by_function
from torchdoctor.schema import Location, Recording, StackSample, Touches

LEAST_SHARE = 0.05  # of the step, from where on an experiment on a call may show something
_FEWEST = 20  # samples, of fewer nothing is said
_WHOLE_PASS = ("forward", "training_step", "__call__", "<module>", "<lambda>")
_LEARNING = ("backward", "optimizer")
_TIMED = {  # phases of samples, and the fields of StepStatistics that time them
    "loader": "data_wait_s",
    "forward": "forward_s",
    "backward": "backward_s",
    "optimizer": "optimizer_s",
}
_REST = "rest"


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
    loops = {_function(row) for row in stacks if row.phase in _LEARNING}
    if not loops or _count(stacks) < _FEWEST:
        return []  # without the loop's own samples any function may be the loop
    calls = []
    for place in by_function(row for row in stacks if _function(row) not in loops):
        share = sampled_share(recording, place.rows)
        calls.append(HotCall(share=share, rows=sorted(place.rows, key=lambda row: -row.count)))
    calls = [call for call in calls if call.is_called and call.share >= LEAST_SHARE]
    return sorted(calls, key=lambda call: -call.share)


def lines_of_passes(recording: Recording) -> list[HotCall]:
    """Return the lines of forward passes that hold a twentieth of the step, the largest first."""
    lines: dict[tuple[str, int], list[StackSample]] = {}
    for row in recording.main.stacks:
        if row.phase == "forward" and row.location.function in _WHOLE_PASS:
            lines.setdefault((row.location.file, row.location.line), []).append(row)
    calls = [
        HotCall(share=sampled_share(recording, rows), rows=sorted(rows, key=lambda x: -x.count))
        for rows in lines.values()
    ]
    large = [call for call in calls if call.share >= LEAST_SHARE]
    return sorted(large, key=lambda call: -call.share)


def sampled_share(recording: Recording, rows: Iterable[StackSample]) -> float:
    """Return the share of the step that samples stand for: their part of each phase's time.

    Long calls into C let fewer samples be taken, so phases count by the clock where it knows them.
    """
    stacks = recording.main.stacks
    steps = recording.steps
    everything = _by_phase(stacks)
    wanted = _by_phase(rows)
    total = sum(everything.values())
    if not total:
        return 0.0
    known: dict[str, float] = {}
    if steps is not None and steps.mean_s > 0 and not recording.has_gpu:
        timed = {name: getattr(steps, field) / steps.mean_s for name, field in _TIMED.items()}
        rest = max(1.0 - sum(timed.values()), 0.0)
        known = {**timed, _REST: rest}
    if any(not known.get(phase) for phase in everything):
        return sum(wanted.values()) / total
    return sum(known[phase] * count / everything[phase] for phase, count in wanted.items())


def sampled_calls(recording: Recording, rows: Sequence[StackSample], label: str) -> Touches:
    """Return the calls that samples show; None: their time in a step is not known."""
    share = sampled_share(recording, rows)
    if not share or recording.steps is None:
        return None
    return touched.calls(recording, share * recording.steps.mean_s, label)


def _by_phase(rows: Iterable[StackSample]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.phase if row.phase in _TIMED else _REST] += row.count
    return counts


def _function(row: StackSample) -> tuple[str, str]:
    return row.location.file, row.location.function or ""


def _count(rows: Iterable[StackSample]) -> int:
    return sum(row.count for row in rows)
