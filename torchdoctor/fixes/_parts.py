"""Parts of declarations that several fixes share: for the tool's process alone.

In the user's process a fix gets a stand-in for each of them, which does nothing.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from torchdoctor.queries.analysed import calls_of
from torchdoctor.queries.hot_calls import sampled_calls
from torchdoctor.queries.loading import HANDED_OVER_S
from torchdoctor.queries.lookup import data_wait_share, own_changes, place
from torchdoctor.queries.torchrun_commands import EXAMPLE, one_machine, program
from torchdoctor.queries.touched import calls, moving_memory
from torchdoctor.schema import (
    Evidence,
    Location,
    Recording,
    Settings,
    StackSample,
    TensorCall,
    Touches,
    fact,
)

Answer = TypeVar("Answer")
_NOTHING_TO_GAIN = 0.01  # share of the step spent waiting
_MOST_NAMED = 3  # of what a dataset changes in itself


def asked_once(ask: Callable[[Recording], Answer]) -> Callable[[Recording], Answer]:
    """Return a function that keeps its answer for the recording that it was asked about last.

    What refuses a fix, bounds it, sets it and edits the source asks the same, and reads the source.
    """
    last: list[tuple[Recording, Answer]] = []

    @functools.wraps(ask)
    def answer(recording: Recording) -> Answer:
        if not last or last[0][0] is not recording:
            last[:] = [(recording, ask(recording))]
        return last[0][1]

    return answer


def hardly_waits(recording: Recording) -> Evidence | None:
    """Return why nothing that prepares batches faster can gain; None: it may."""
    share = data_wait_share(recording)
    steps = recording.steps
    if share is None or steps is None:
        return None
    if share < _NOTHING_TO_GAIN:
        return fact("hardly-waits", share=share)
    if (wait_s := share * steps.mean_s) >= HANDED_OVER_S:
        return None
    return fact("wait-is-a-handover", wait_ms=1e3 * wait_s)


def changed_itself(recording: Recording, ident: str) -> Evidence | None:
    """Return a doubt about what the dataset changes in itself; `ident`: what becomes of it."""
    changes = own_changes(recording)
    if not changes:
        return None
    named = [
        {"name": change.name, "file": change.location.file, "line": change.location.line}
        for change in changes[:_MOST_NAMED]
    ]
    return fact(ident, changes=named)


def fewer_than_two_gpus(recording: Recording) -> Evidence | None:
    """Return why nothing can be divided among GPUs; None: there are several."""
    main = recording.main
    if recording.has_gpu and max(len(main.devices), main.world_size or 1) > 1:
        return None
    return fact("fewer-than-two-gpus")


def infers_elsewhere(recording: Recording) -> Evidence | None:
    """Return why code that was tried for inference on a CPU is not for it; None: it is."""
    if not recording.infers:
        return fact("program-trains")
    if recording.has_gpu:
        return fact("run-on-cpus-alone")
    return None


def is_replicated(recording: Recording) -> bool:
    """Return True if the program trains with a process for each GPU."""
    kinds = {model.data_parallel for model in recording.main.models}
    return bool(kinds & {"DistributedDataParallel", "FSDP"})


def with_own_command(code: str, recording: Recording) -> str:
    """Return a page's code with the command that starts this program on all GPUs."""
    return code.replace(one_machine(EXAMPLE), one_machine(program(recording)))


@dataclass(frozen=True, kw_only=True)
class SampledLines:
    """A fix of certain lines of the program's own: those that the sampled stacks show."""

    rows: Callable[[Recording], list[StackSample]]  # the line to name first
    label: str  # of what they do
    none: str  # why it is refused where there are none
    moves: Annotated[str, "", "reads", "copies"] = ""  # much memory, through the caches

    def refuses(self, recording: Recording) -> Evidence | None:
        return None if self.rows(recording) else fact("no-such-line")

    @property
    def sentences(self) -> dict[str, str]:
        """Return the templates of what it refuses with."""
        return {"no-such-line": self.none}

    def touches(self, recording: Recording) -> Touches:
        lines = sampled_calls(recording, self.rows(recording), self.label)
        if not self.moves:
            return lines
        return moving_memory(recording, lines, copies=self.moves == "copies")

    def location(self, recording: Recording) -> Location | None:
        return next((row.location for row in self.rows(recording)), None)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A fix of certain lines of the training loop: those whose calls the analysed steps noted."""

    kinds: tuple[str, ...]  # of TensorCall
    unseen: str  # what nobody looked at without these steps, with its verb
    none: str  # why it is refused where there are none
    otherwise: str  # in place of a line that is not known
    advise: Callable[[TensorCall], str]  # what to write there

    def calls(self, recording: Recording) -> list[TensorCall]:
        """Return the calls, the longest first."""
        return calls_of(recording, *self.kinds)

    def touches(self, recording: Recording) -> Touches:
        line_calls = self.calls(recording)
        label = "the calls of these lines"
        return (
            calls(recording, sum(call.host_s for call in line_calls), label) if line_calls else None
        )

    def refuses(self, recording: Recording) -> Evidence | None:
        if not recording.main.analysed_steps:
            return fact("not-examined")
        return None if self.calls(recording) else fact("no-such-line")

    @property
    def sentences(self) -> dict[str, str]:
        """Return the templates of what it refuses with."""
        unexamined = f"{self.unseen} not examined: that needs steps after the profiler window."
        return {"no-such-line": self.none, "not-examined": unexamined}

    def by_hand(self, recording: Recording) -> bool:
        """As `FixSpec.by_hand`: only a person can tell where no call is sure."""
        return not any(call.sure for call in self.calls(recording))

    def location(self, recording: Recording) -> Location | None:
        return next((call.location for call in self.calls(recording)), None)

    def instruction(self, settings: Settings, recording: Recording) -> str:
        return "\n".join(
            f"{place(recording, call.location, self.otherwise)}  {self.advise(call)}"
            for call in self.calls(recording)
        )
