"""Functions and lines of the user's own that hold much of the step, by the sampled stacks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchdoctor.queries import touched
from torchdoctor.queries.stacks import Place, by_function, by_line, function_of
from torchdoctor.schema import Location, Recording, StackSample, Touches
from torchdoctor.schema.figures import source_line

LEAST_SHARE = 0.05  # of the step, from where on an experiment on a call may show something
_FEWEST = 20  # samples, of fewer nothing is said
_WHOLE_PASS = ("forward", "training_step", "__call__", "<module>", "<lambda>")
LEARNING = ("backward", "optimizer")
_TIMED = {  # phases of samples, and the fields of StepStatistics that time them
    "loader": "data_wait_s",
    "forward": "forward_s",
    "backward": "backward_s",
    "optimizer": "optimizer_s",
}
_REST = "rest"
_SHOWN = 60  # characters of a line


@dataclass(frozen=True, kw_only=True)
class SampledCode:
    """Lines of one function, and how much of the step they hold."""

    share: float
    rows: list[StackSample]  # the most frequent first

    @property
    def location(self) -> Location:
        """The line that most samples show."""
        return self.rows[0].location

    @property
    def function(self) -> str:
        """The name of the function."""
        return self.location.function or ""

    @property
    def text(self) -> str | None:
        """The beginning of that line's source; None: it is not known."""
        return source_line(self.rows[0].text, _SHOWN)

    @property
    def phases(self) -> set[str]:
        """The phases that the samples fall into."""
        return {row.phase for row in self.rows}


def sampled_code(recording: Recording, places: Iterable[Place]) -> list[SampledCode]:
    """Return places with their shares of the step, the largest first."""
    code = [
        SampledCode(share=sampled_share(recording, place.rows), rows=place.rows) for place in places
    ]
    return sorted(code, key=lambda each: -each.share)


def is_sampled_enough(recording: Recording) -> bool:
    """Return True if there are samples enough to say something of the step."""
    return sum(row.count for row in recording.main.stacks) >= _FEWEST


def hot_calls(recording: Recording) -> list[SampledCode]:
    """Return the functions that hold a twentieth of the step or more, the largest first.

    The function that learns is the loop, whose call nobody could spare.
    """
    stacks = recording.main.stacks
    loops = {function_of(row) for row in stacks if row.phase in LEARNING}
    if not loops or not is_sampled_enough(recording):
        return []  # without the loop's own samples any function may be the loop
    places = by_function(row for row in stacks if function_of(row) not in loops)
    calls = sampled_code(recording, places)
    return [call for call in calls if _is_called(call) and call.share >= LEAST_SHARE]


def _is_called(code: SampledCode) -> bool:
    """Return True if it is neither a whole pass nor the loop: its call can be answered."""
    return code.function not in _WHOLE_PASS and not code.function.startswith("<")


def lines_of_passes(recording: Recording) -> list[SampledCode]:
    """Return the lines of forward passes that hold a twentieth of the step, the largest first."""
    forward = (row for row in recording.main.stacks if row.phase == "forward")
    lines = by_line(row for row in forward if row.location.function in _WHOLE_PASS)
    return [code for code in sampled_code(recording, lines) if code.share >= LEAST_SHARE]


def files_of_calls(recording: Recording, file: str) -> list[str]:
    """Return a function's file and the program's script: its calls stand in them."""
    return sorted({file, recording.workload.script or file})


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
    phase_shares: dict[str, float] = {}
    if steps is not None and steps.mean_s > 0 and not recording.has_gpu:
        timed = {name: getattr(steps, field) / steps.mean_s for name, field in _TIMED.items()}
        rest = max(1.0 - sum(timed.values()), 0.0)
        phase_shares = {**timed, _REST: rest}
    if any(not phase_shares.get(phase) for phase in everything):
        return sum(wanted.values()) / total
    return sum(phase_shares[phase] * count / everything[phase] for phase, count in wanted.items())


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
