"""Both versions observed before they are measured: what keeps them from being compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchdoctor.gate.session import GateSession
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.observe.observation import Observation
from torchdoctor.reports.wording import how_it_failed
from torchdoctor.words import StepStatistics
from torchdoctor.words.errors import Inconclusive, NoStepFound, ProgramFailed, TimedOut

Waits = list[tuple[StepStatistics, StepStatistics]]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the launches before the first pair showed, each of (reference, new).

    arms: how they are launched, their boundaries known.
    waits: their steps, once for each order in which they were observed.
    """

    arms: tuple[LaunchSpec, LaunchSpec]
    versions: tuple[Observation, Observation]
    waits: Waits
    doubts: list[str] = field(default_factory=list)


def observe_both(session: GateSession, arms: tuple[LaunchSpec, LaunchSpec], ref: str) -> Observed:
    """Observe the working tree, then the reference; in the other order too if waiting is judged.

    Args:
        session: launches them.
        arms: reference, working tree.
        ref: what to call the reference.

    Raises:
        ProgramFailed, NoStepFound, TimedOut: of the working tree's version.
        Inconclusive: the reference cannot be measured, or not compared with the new version.
        KeyboardInterrupt: as `GateSession.observe`.
    """
    session.say("observe", "the working tree")
    new = session.observe(arms[1])
    session.say("observe", ref)
    try:
        reference = session.observe(arms[0], may_fail=True)
    except (ProgramFailed, NoStepFound, TimedOut) as error:
        raise Inconclusive(f"The program of {ref} cannot be measured: {error}") from error
    known = [x.steps.samples_per_step is not None for x in (reference, new)]
    if known[0] != known[1]:
        where = ref if known[0] else "the working tree"
        raise Inconclusive(
            f"Not comparable with {ref}: the size of a batch is known in {where} only, and time "
            "per step says nothing where a step may hold another number of samples."
        )
    waits, doubts = [(reference.steps, new.steps)], _doubts(reference, new, ref)
    if session.settings.tolerances.get("data_loader_share") is not None:
        again, further = _in_the_other_order(session, arms)
        waits, doubts = waits + again, doubts + further
    reference_arm, new_arm = (
        replace(arm, boundary=x.steps_found.boundary)
        for arm, x in zip(arms, (reference, new), strict=True)
    )
    return Observed(
        arms=(reference_arm, new_arm), versions=(reference, new), waits=waits, doubts=doubts
    )


def _doubts(reference: Observation, new: Observation, ref: str) -> list[str]:
    doubts = list(new.doubts)
    doubts += [f"Of {ref}: {doubt}" for doubt in reference.doubts if doubt not in new.doubts]
    if reference.failure is not None:
        failed = how_it_failed(reference.failure)
        doubts.append(f"{ref}: {failed}; the steps before are compared.")
    return doubts


def _in_the_other_order(
    session: GateSession, arms: tuple[LaunchSpec, LaunchSpec]
) -> tuple[Waits, list[str]]:
    """Observe the reference first: whichever reads first finds nothing in the page cache."""
    try:
        session.say("observe", "the reference version again: the wait for data")
        reference = session.observe(arms[0], may_fail=True).steps
        session.say("observe", "the new version again: the wait for data")
        new = session.observe(arms[1], may_fail=True).steps
    except (ProgramFailed, NoStepFound, TimedOut) as error:
        reason = str(error).splitlines()[0]
        return [], [f"The wait for data was observed in one order only: {reason}"]
    return [(reference, new)], []
