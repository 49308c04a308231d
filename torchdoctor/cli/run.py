"""`torchdoctor run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli.arguments import SEEDS, ids, parse_duration
from torchdoctor.cli.output import Details, check_tensorboard, hand_to_tensorboard, write
from torchdoctor.cli.written_files import check_written

HELP = (
    "Observe a training program, diagnose it, try fixes on it, and rank them as measured.\n\n"
    "torchdoctor run \\[options] train.py \\[its arguments]\n\n"
    "torchdoctor run \\[options] -- any command (torchrun ..., python -m pkg ...)"
)


def run(
    command: Annotated[list[str], typer.Argument(help="The script, or after -- any command.")],
    budget: Annotated[str, typer.Option(help="Time for everything, e.g. 90s, 5m, 1h.")] = "5m",
    json: Annotated[Path | None, typer.Option(help="Also write the report as JSON here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the report as HTML here.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write event files for TensorBoard here.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for all it writes (default torchdoctor-runs/<time>/)."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=5, help="Measured steps per launch (default: chosen).")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Warm-up steps per launch (default: chosen).")
    ] = None,
    fixes: Annotated[
        str | None,
        typer.Option(
            help="Try only these fixes, comma-separated. What has to go with one (fewer threads "
            "with loader workers) is tried along with it, unless left out by --skip."
        ),
    ] = None,
    skip: Annotated[str | None, typer.Option(help="Do not try these fixes.")] = None,
    no_fixes: Annotated[bool, typer.Option("--no-fixes", help="Diagnose only.")] = False,
    allow_training_changes: Annotated[
        bool,
        typer.Option(
            "--allow-training-changes",
            help="Also try fixes that change training (a larger batch), judged per sample.",
        ),
    ] = False,
    step_on: Annotated[
        str | None,
        typer.Option(help="What a step is: loader, optimizer, backward or explicit."),
    ] = None,
    timeout: Annotated[
        str, typer.Option(help="Longest time to wait for the first training steps.")
    ] = "10m",
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=SEEDS, help="Seed for a program that sets none, so that runs compare."
        ),
    ] = 0,
    python: Annotated[
        str | None, typer.Option(help="The Python that runs the script (default: the active one).")
    ] = None,
    no_sandbox: Annotated[
        bool,
        typer.Option("--no-sandbox", help="Let the program write to your files, every launch."),
    ] = False,
    in_turns: Annotated[
        bool,
        typer.Option(
            "--in-turns", help="Never two launches in memory at the same time (sees less)."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No live progress.")] = False,
    details: Details = False,
) -> None:
    """Observe, diagnose, try fixes, rank."""
    from torchdoctor.checkup.run import checkup
    from torchdoctor.checkup.run_settings import RunSettings
    from torchdoctor.launch.launch import workload_of
    from torchdoctor.reports.failure import program_failed
    from torchdoctor.reports.formats import show
    from torchdoctor.reports.progress import Progress

    settings = RunSettings(
        budget_s=parse_duration(budget),
        timeout_s=parse_duration(timeout),
        output=output,
        steps=steps,
        warmup=warmup,
        fixes=ids(fixes),
        skip=ids(skip) or [],
        no_fixes=no_fixes,
        allow_training_changes=allow_training_changes,
        step_on=step_on,
        seed=seed,
        sandbox=not no_sandbox,
        side_by_side=not in_turns,
    )
    check_written({"report": json, "HTML page": html})
    check_tensorboard(tensorboard)
    workload = workload_of(command, python=python)
    with Progress(quiet=quiet) as progress:
        report = checkup(workload, settings, progress=progress.update)
    write(report, json, html)
    show(report, details)
    hand_to_tensorboard(report, tensorboard)
    if report.interrupted:
        raise typer.Exit(130)
    if report.failure is not None:
        raise program_failed(report.failure)
