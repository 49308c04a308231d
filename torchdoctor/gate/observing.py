"""Both versions observed before they are measured: what keeps them from being compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torchdoctor.gate.launches import Side
from torchdoctor.gate.settings import GateSettings
from torchdoctor.observe.observation import Observation
from torchdoctor.pairs.record import Recorder
from torchdoctor.reports.failure import how_it_failed, program_failed
from torchdoctor.words import StepStatistics
from torchdoctor.words.errors import Inconclusive, NoStepFound, ProgramFailed, TimedOut

_OBSERVE_S = 5.0
Say = Callable[[str, str], None]
Waits = list[tuple[StepStatistics, StepStatistics]]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the launches before the first pair showed.

    sides: (reference, new).
    waits: steps of (reference, new), once for each order in which they were observed.
    """

    sides: tuple[Side, Side]
    waits: Waits
    doubts: list[str] = field(default_factory=list)


def look_at(recorder: Recorder, settings: GateSettings) -> Observation:
    """One observing launch.

    Raises:
        ProgramFailed, NoStepFound, TimedOut: of the program.
        KeyboardInterrupt: also where Ctrl-C came after enough steps.
    """
    most_s = max(0.15 * settings.budget_s, _OBSERVE_S)
    seen = recorder.observe(settings.step_on, _OBSERVE_S, most_s, settings.budget_s)
    if seen.interrupted:
        raise KeyboardInterrupt
    return seen


def look_at_new(recorder: Recorder, settings: GateSettings) -> Observation:
    """The same of the working tree, whose failure after enough steps is no pass either.

    Raises:
        ProgramFailed, NoStepFound, TimedOut: of the program.
        KeyboardInterrupt: as `look_at`.
    """
    seen = look_at(recorder, settings)
    if seen.failure is not None:
        raise program_failed(seen.failure, "it was not compared")
    return seen


def observe_both(
    new: Recorder, old: Recorder, ref: str, settings: GateSettings, say: Say
) -> Observed:
    """The working tree, then the reference; again in the other order where waiting is judged.

    Args:
        new: launches the working tree.
        old: launches the reference.
        ref: what to call the reference.
        settings: what the user asked for.
        say: told whenever something begins: phase and message.

    Raises:
        ProgramFailed, NoStepFound, TimedOut: of the working tree's version.
        Inconclusive: the reference cannot be measured, or not compared with the new version.
        KeyboardInterrupt: as `look_at`.
    """
    say("observe", "the working tree")
    today = Side(name="new", recorder=new, seen=look_at_new(new, settings))
    say("observe", ref)
    try:
        before = Side(name="reference", recorder=old, seen=look_at(old, settings))
    except (ProgramFailed, NoStepFound, TimedOut) as error:
        raise Inconclusive(f"The program of {ref} cannot be measured: {error}") from error
    sides = before, today
    _check_batches(sides, ref)
    waits, doubts = [(before.seen.steps, today.seen.steps)], _doubts(sides, ref)
    if settings.tolerances.get("data_loader_share") is not None:
        again, doubt = _in_the_other_order(sides, settings, say)
        waits, doubts = waits + again, doubts + doubt
    # What is logged costs time, so both sides log the same.
    new.logs_phases = old.logs_phases = new.logs_phases or old.logs_phases
    return Observed(sides=sides, waits=waits, doubts=doubts)


def _check_batches(sides: tuple[Side, Side], ref: str) -> None:
    known = [side.seen.steps.samples_per_step is not None for side in sides]
    if known[0] != known[1]:
        where = ref if known[0] else "the working tree"
        raise Inconclusive(
            f"Not comparable with {ref}: the size of a batch is known in {where} only, and time "
            "per step says nothing where a step may hold another number of samples."
        )


def _doubts(sides: tuple[Side, Side], ref: str) -> list[str]:
    before, today = (side.seen for side in sides)
    found = list(today.doubts)
    found += [f"Of {ref}: {doubt}" for doubt in before.doubts if doubt not in today.doubts]
    if before.failure is not None:
        found.append(f"{ref}: {how_it_failed(before.failure)}; the steps before are compared.")
    return found


def _in_the_other_order(
    sides: tuple[Side, Side], settings: GateSettings, say: Say
) -> tuple[Waits, list[str]]:
    """Who reads first finds nothing in the page cache: each goes first once."""
    steps = []
    try:
        for side in sides:
            say("observe", f"the {side.name} version again: the wait for data")
            steps.append(look_at(side.recorder, settings).steps)
    except (ProgramFailed, NoStepFound, TimedOut) as error:
        said = str(error).splitlines()[0]
        return [], [f"The wait for data was observed in one order only: {said}"]
    return [(steps[0], steps[1])], []
