"""Both versions observed before they are measured: what keeps them from being compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torchdoctor.gate.settings import GateSettings
from torchdoctor.launch.escaped_writes import escape_doubt
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.machine.environment import environment
from torchdoctor.observe.observation import Observation
from torchdoctor.pairs.record import Recorder
from torchdoctor.reports.failure import how_it_failed, program_failed
from torchdoctor.words import Environment, StepStatistics, Workload
from torchdoctor.words.errors import Inconclusive, NoStepFound, ProgramFailed, TimedOut

_OBSERVE_S = 5.0
Say = Callable[[str, str], None]
Waits = list[tuple[StepStatistics, StepStatistics]]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One version: how it is launched, and what its first launch showed."""

    arm: LaunchSpec
    seen: Observation


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the launches before the first pair showed.

    waits: steps of (reference, new), once for each order in which they were observed.
    """

    reference: Side
    new: Side
    waits: Waits
    doubts: list[str] = field(default_factory=list)


def observe(recorder: Recorder, arm: LaunchSpec, settings: GateSettings) -> Observation:
    """Observe one version in a launch of its own.

    Raises:
        ProgramFailed, NoStepFound, TimedOut: of the program.
        KeyboardInterrupt: also where Ctrl-C came after enough steps.
    """
    most_s = max(0.15 * settings.budget_s, _OBSERVE_S)
    launched = replace(arm, name=f"observe-{arm.name}")
    seen = recorder.observe(settings.step_on, _OBSERVE_S, most_s, settings.budget_s, launched)
    if seen.interrupted:
        raise KeyboardInterrupt
    return seen


def observe_new(recorder: Recorder, arm: LaunchSpec, settings: GateSettings) -> Observation:
    """Observe the working tree, whose failure after enough steps is no pass either.

    Raises:
        ProgramFailed, NoStepFound, TimedOut: of the program.
        KeyboardInterrupt: as `observe`.
    """
    seen = observe(recorder, arm, settings)
    if seen.failure is not None:
        raise program_failed(seen.failure, "it was not compared")
    return seen


def observe_both(
    recorder: Recorder,
    arms: tuple[LaunchSpec, LaunchSpec],
    ref: str,
    settings: GateSettings,
    say: Say,
) -> Observed:
    """Observe the working tree, then the reference; in the other order too if waiting is judged.

    Args:
        recorder: launches them.
        arms: reference, working tree.
        ref: what to call the reference.
        settings: what the user asked for.
        say: told whenever something begins: phase and message.

    Raises:
        ProgramFailed, NoStepFound, TimedOut: of the working tree's version.
        Inconclusive: the reference cannot be measured, or not compared with the new version.
        KeyboardInterrupt: as `observe`.
    """
    say("observe", "the working tree")
    new = _side(arms[1], observe_new(recorder, arms[1], settings))
    say("observe", ref)
    try:
        reference = _side(arms[0], observe(recorder, arms[0], settings))
    except (ProgramFailed, NoStepFound, TimedOut) as error:
        raise Inconclusive(f"The program of {ref} cannot be measured: {error}") from error
    _check_batches(reference.seen, new.seen, ref)
    waits = [(reference.seen.steps, new.seen.steps)]
    doubts = _doubts(reference.seen, new.seen, ref)
    if settings.tolerances.get("data_loader_share") is not None:
        again, further = _in_the_other_order(recorder, arms, settings, say)
        waits, doubts = waits + again, doubts + further
    return Observed(reference=reference, new=new, waits=waits, doubts=doubts)


def _side(arm: LaunchSpec, seen: Observation) -> Side:
    return Side(arm=replace(arm, boundary=seen.found.boundary), seen=seen)


def _check_batches(reference: Observation, new: Observation, ref: str) -> None:
    known = [seen.steps.samples_per_step is not None for seen in (reference, new)]
    if known[0] != known[1]:
        where = ref if known[0] else "the working tree"
        raise Inconclusive(
            f"Not comparable with {ref}: the size of a batch is known in {where} only, and time "
            "per step says nothing where a step may hold another number of samples."
        )


def _doubts(reference: Observation, new: Observation, ref: str) -> list[str]:
    doubts = list(new.doubts)
    doubts += [f"Of {ref}: {doubt}" for doubt in reference.doubts if doubt not in new.doubts]
    if reference.failure is not None:
        failed = how_it_failed(reference.failure)
        doubts.append(f"{ref}: {failed}; the steps before are compared.")
    return doubts


def _in_the_other_order(
    recorder: Recorder, arms: tuple[LaunchSpec, LaunchSpec], settings: GateSettings, say: Say
) -> tuple[Waits, list[str]]:
    """Observe the reference first: whichever reads first finds nothing in the page cache."""
    steps = []
    try:
        for arm, name in zip(arms, ("reference", "new"), strict=True):
            say("observe", f"the {name} version again: the wait for data")
            steps.append(observe(recorder, arm, settings).steps)
    except (ProgramFailed, NoStepFound, TimedOut) as error:
        reason = str(error).splitlines()[0]
        return [], [f"The wait for data was observed in one order only: {reason}"]
    return [(steps[0], steps[1])], []


def environment_of(workload: Workload, seen: Observation, sandbox: Sandbox) -> Environment:
    """Return the machine, and the software as the program itself saw it."""
    machine, program = environment(workload.python), seen.processes[0]
    return replace(
        machine, torch=program.torch or machine.torch, cuda=program.cuda, sandbox=sandbox.mode
    )


def launch_doubts(recorder: Recorder, sandbox: Sandbox) -> list[str]:
    """Return what the launches gave reason to doubt, and the sandbox they ran in."""
    escaped = escape_doubt(recorder.escaped, sandbox.mode)
    return [*recorder.doubts, *escaped, *([sandbox.doubt] if sandbox.doubt else [])]
