"""`torchdoctor watch`."""

from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli import arguments
from torchdoctor.cli.outputs import check_written

HELP = (
    "Stay beside a real training or inference: record it to its end, tell when and why it becomes "
    "slower.\n\n"
    "Nothing is tried or changed; the program keeps its terminal, signals and exit code.\n\n"
    "torchdoctor watch \\[options] train.py \\[its arguments]\n\n"
    "torchdoctor watch \\[options] -- any command (torchrun ..., python -m pkg ...)"
)
_Metrics = Annotated[
    Path | None, typer.Option(help="Keep the live figures here, as OpenMetrics text.")
]
_Scalars = Annotated[Path | None, typer.Option(help="Write live scalars for TensorBoard here.")]
_Profiler = Annotated[
    bool,
    typer.Option(
        "--profiler",
        help="Profile a few steps now and then and when training became slower, in 0.5 % of the "
        "time at most. torch says so on stderr, and keeps more memory.",
    ),
]
_ToTracker = Annotated[
    bool,
    typer.Option(
        "--log-to-tracker", help="Add the summary to the program's own W&B or MLflow run."
    ),
]


def watch(
    command: arguments.Command,
    output: arguments.OutputFolder = None,
    step_on: arguments.StepOn = None,
    metrics_file: _Metrics = None,
    tensorboard: _Scalars = None,
    profiler: _Profiler = False,
    log_to_tracker: _ToTracker = False,
) -> None:
    """Become the program, with a process of torchdoctor beside it."""
    from torchdoctor.launch.workload import workload_of
    from torchdoctor.watch.start import WatchSettings, watch

    check_written({}, tensorboard=tensorboard)
    settings = WatchSettings(
        output=arguments.result_folder(output),
        step_on=step_on,
        profile=profiler,
        log_to_tracker=log_to_tracker,
        metrics_file=metrics_file and metrics_file.absolute(),
        tensorboard=tensorboard and tensorboard.absolute(),
    )
    watch(workload_of(command), settings)
