"""How the observing launch came to its steps; where none can be used, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchdoctor.launch.launch import LaunchResult
from torchdoctor.launch.launch_ending import how_it_ended
from torchdoctor.observe.events import Events
from torchdoctor.observe.observation_watch import FEW_STEPS, FEWEST_STEPS
from torchdoctor.observe.step_finding import NoSteps, StepsFound
from torchdoctor.observe.steps import boundary_rows, step_durations
from torchdoctor.words import ProcessFacts, ProgramFailure, Workload
from torchdoctor.words.errors import NoStepFound, ProgramFailed, TimedOut

_LONGER = (
    "Where it had not come to its training yet (it loads its data, or evaluates first), give it "
    "longer with --budget and --timeout, or less data."
)
_OWN_OPTIONS = frozenset(
    f"--{name}"
    for name in (
        *("budget", "json", "html", "tensorboard", "output", "steps", "warmup", "fixes", "skip"),
        *("no-fixes", "allow-training-changes", "step-on", "timeout", "seed", "python"),
        *("no-sandbox", "quiet"),
    )
)


def check_usable(
    result: LaunchResult,
    events: dict[int, Events],
    found: StepsFound | NoSteps,
    workload: Workload,
) -> None:
    """Nothing where steps were found.

    Raises:
        ProgramFailed, NoStepFound, TimedOut: with a sentence that says what to do.
    """
    steps = 0
    if isinstance(found, StepsFound):
        steps = len(step_durations(events[found.trainers[0]], found))
    failed = result.ended == "exited" and result.exit_code != 0
    if failed and steps < FEW_STEPS:
        raise ProgramFailed(
            f"The program failed before it could be measured ({how_it_ended(result)}, after "
            f"{steps} whole training steps). {_last_words(result, workload)}",
            result.exit_code,
        )
    if result.ended == "timed-out" and steps < FEWEST_STEPS:
        seen, todo = f"{steps} were seen", ""
        if isinstance(found, NoSteps):
            seen, todo = found.reason, f" {found.advice}"
        raise TimedOut(
            f"Stopped after {result.wall_s:.0f} s without enough training steps: "
            f"{seen.rstrip('.')}.{todo} {_LONGER}"
        )
    if isinstance(found, NoSteps):
        raise NoStepFound(f"No training step was found: {found.reason} {found.advice}")


def own_failure(result: LaunchResult, steps: int) -> ProgramFailure | None:
    """How a program failed of which `steps` were enough; None: it did not, or we ended it."""
    if result.ended != "exited" or not result.exit_code:
        return None
    return ProgramFailure(
        exit_code=result.exit_code, steps=steps, output_tail=result.output_tail.strip()
    )


def _last_words(result: LaunchResult, workload: Workload) -> str:
    said = result.output_tail.strip()
    if not said:
        return "It printed nothing. Make it run without torchdoctor first."
    given = {argument.partition("=")[0] for argument in workload.command}
    ours = sorted(option for option in given & _OWN_OPTIONS if option in said)
    todo = "Make it run without torchdoctor first."
    if ours:
        todo = (
            f"{', '.join(ours)} went to the program: torchdoctor's own options stand before the "
            "script."
        )
    return f"Its own output ends with:\n\n{said}\n\n{todo}"


def step_start_s(trainer: Events, found: StepsFound, result: LaunchResult) -> float:
    """Seconds from the launch's start to the first iteration: what every launch pays again."""
    total = float(step_durations(trainer, found).sum())
    most = max(result.wall_s - total, 0.0)
    if result.began_s is None:
        return most
    # Not what follows the last iteration: an evaluation, a checkpoint, the end of the process.
    first = float(trainer.t_ns[boundary_rows(trainer, found.boundary)[0]]) / 1e9 - result.began_s
    return first if 0.0 <= first <= most else most


def trainers_first(
    facts: Mapping[int, ProcessFacts], trainers: Sequence[int]
) -> list[ProcessFacts]:
    """Facts of all processes: the main trainer's, the other trainers', the rest; never nothing."""
    first = [facts[pid] for pid in trainers if pid in facts]
    rest = [fact for pid, fact in sorted(facts.items()) if pid not in trainers]
    return [*first, *rest] or [ProcessFacts(pid=trainers[0])]
