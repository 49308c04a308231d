"""`torchdoctor run`."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from torchdoctor.cli import arguments, detached
from torchdoctor.cli.arguments import ids, parse_duration
from torchdoctor.cli.outputs import check_written, hand_out, leave_with_code
from torchdoctor.schema import Report
from torchdoctor.schema.errors import Interrupted, UsageError

HELP = (
    "Observe a training program, diagnose it, try fixes on it, and rank them as measured.\n\n"
    "torchdoctor run \\[options] train.py \\[its arguments]\n\n"
    "torchdoctor run \\[options] -- any command (torchrun ..., python -m pkg ...)"
)
_Fixes = Annotated[
    str | None,
    typer.Option(
        help="Try only these fixes, comma-separated. What has to go with one (fewer threads "
        "with loader workers) is tried along with it, unless left out by --skip."
    ),
]
_Skip = Annotated[str | None, typer.Option(help="Do not try these fixes.")]
_NoFixes = Annotated[bool, typer.Option("--no-fixes", help="Diagnose only.")]
_From = Annotated[
    Path | None, typer.Option("--from", help="A watched run of the program, to observe less anew.")
]
_Detach = Annotated[
    bool,
    typer.Option("--detach", help="Return at once with the run's folder; see report --status."),
]
_Cold = Annotated[
    bool, typer.Option("--no-fork", help="Start an interpreter for each launch; fork none.")
]
_StepsTotal = Annotated[
    int | None,
    typer.Option(min=1, help="Steps of the whole training, to tell the hours that are saved."),
]
_Cost = Annotated[
    float | None,
    typer.Option(min=0.0, help="What an hour of the machine costs, to tell what is saved."),
]
_TrainingChanges = Annotated[
    bool,
    typer.Option(
        "--allow-training-changes",
        help="Also try fixes that change training (a larger batch), judged per sample.",
    ),
]

_OutputChanges = Annotated[
    bool,
    typer.Option(
        "--allow-output-changes",
        help="Of a program that infers: also recommend what changes more than 0.1 % of decisions.",
    ),
]


def run(
    context: typer.Context,
    command: arguments.Command,
    budget: arguments.Budget = "5m",
    output: arguments.OutputFolder = None,
    tensorboard: arguments.TensorBoard = None,
    watched: _From = None,
    steps: arguments.Steps = None,
    warmup: arguments.Warmup = None,
    fixes: _Fixes = None,
    skip: _Skip = None,
    no_fixes: _NoFixes = False,
    allow_training_changes: _TrainingChanges = False,
    allow_output_changes: _OutputChanges = False,
    step_on: arguments.StepOn = None,
    timeout: arguments.Timeout = "10m",
    seed: arguments.Seed = 0,
    python: arguments.Python = None,
    no_sandbox: arguments.NoSandbox = False,
    network: arguments.Network = "on",
    in_turns: arguments.InTurns = False,
    cold: _Cold = False,
    steps_total: _StepsTotal = None,
    cost_per_hour: _Cost = None,
    on: arguments.On = None,
    nodes: arguments.Nodes = 0,
    gpus_per_pair: arguments.Gpus = 0,
    quiet: arguments.Quiet = False,
    details: arguments.Details = False,
    format: arguments.Format = "text",
    exit_code: arguments.ExitCode = False,
    detach: _Detach = False,
) -> None:
    """Observe, diagnose, try fixes, rank. The context's `obj` gets the report if no screen does."""
    began_s = time.monotonic()  # imports count in the budget: on a busy machine they take seconds
    from torchdoctor.launch.workload import workload_of
    from torchdoctor.reports.progress import Progress
    from torchdoctor.runs.run import checkup
    from torchdoctor.runs.run_settings import RunSettings

    format = arguments.checked_format(format)
    where = arguments.checked_place if detach else arguments.place
    settings = RunSettings(
        **where(budget, on, nodes, gpus_per_pair, output),
        made_folder=detached.own_folder(),
        began_s=began_s,
        timeout_s=parse_duration(timeout),
        earlier=_earlier(watched) if watched else None,
        steps=steps,
        warmup=warmup,
        fixes=ids(fixes),
        skip=ids(skip) or [],
        no_fixes=no_fixes,
        allow_training_changes=allow_training_changes,
        allow_output_changes=allow_output_changes,
        step_on=step_on,
        seed=seed,
        **arguments.isolation(no_sandbox, network),
        side_by_side=not in_turns,
        cold=cold,
        steps_total=steps_total,
        cost_per_hour=cost_per_hour,
    )
    check_written({}, tensorboard=tensorboard)
    workload = workload_of(command, python=python)
    if detach:
        settings.check()
        detached.start(output, format)
        return
    with Progress(quiet=quiet) as progress:
        report = checkup(workload, settings, progress=progress.update)
    hand_out(report, tensorboard, details if context.obj is None else None, format)
    if context.obj is not None:
        context.obj(report)
    raise_for(report)
    leave_with_code(report, exit_code and context.obj is None)


def _earlier(watched: Path) -> Callable[..., Any]:
    from torchdoctor.watch import earlier, recording

    return partial(earlier.shortened, recording.opened(watched))


def raise_for(report: Report) -> None:
    """Raise what ends the command after a report that is not stored, cut short or of a failure."""
    from torchdoctor.reports.remarks import UNWRITTEN_REPORT
    from torchdoctor.reports.wording import program_failed

    if report.run_folder is None:  # it took no report
        why = next(remark for remark in report.remarks if remark.fact in UNWRITTEN_REPORT)
        raise UsageError(f"{why.sentence} This screen alone has the report: give --output.")
    if report.interrupted:
        raise Interrupted("interrupted: the report is of what was measured until then.")
    if report.failure is not None:
        raise program_failed(report.failure)
