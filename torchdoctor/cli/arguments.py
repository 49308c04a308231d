"""Arguments that several commands share, and how they are read."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from torchdoctor.launch.run_folder import RUNS
from torchdoctor.schema.errors import UsageError

_SEEDS = 2**32 - 1  # the largest that NumPy takes
FORMATS = ("text", "json", "markdown")  # of every command
_BY_ENDING = {".json": "json", ".md": "markdown", ".html": "html", ".sarif": "sarif"}
_ENDINGS = (*_BY_ENDING, ".txt", ".xml")  # of files, and hardly of a folder
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}

Command = Annotated[list[str], typer.Argument(help="The script, or any command after --.")]
TensorBoard = Annotated[
    Path | None, typer.Option(help="Also write event files for TensorBoard here.")
]
OutputFolder = Annotated[
    Path | None,
    typer.Option(
        "--output",
        help=f"A folder, which gets the result in every form (default {RUNS}/<time>/).",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option("--output", help="A file, which gets the answer in place of the screen."),
]
Budget = Annotated[str, typer.Option(help="Time for everything, e.g. 90s, 5m, 1h.")]
Timeout = Annotated[str, typer.Option(help="Longest time to wait for the first training steps.")]
Steps = Annotated[
    int | None, typer.Option(min=5, help="Measured steps per launch (default: automatic).")
]
Warmup = Annotated[
    int | None, typer.Option(min=0, help="Warm-up steps per launch (default: automatic).")
]
StepOn = Annotated[
    str | None, typer.Option(help="What a step is: loader, optimizer, backward or explicit.")
]
Seed = Annotated[
    int,
    typer.Option(
        min=0, max=_SEEDS, help="Seed for a program that sets none, so that runs can be compared."
    ),
]
Python = Annotated[
    str | None, typer.Option(help="The Python that runs the script (default: the active one).")
]
NoSandbox = Annotated[
    bool,
    typer.Option(
        "--no-sandbox",
        help="My files may be written: run without a scratch layer, each launch writing to them.",
    ),
]
Network = Annotated[str, typer.Option(help="on, or off: every launch is cut off from the network.")]
InTurns = Annotated[
    bool,
    typer.Option("--sequential", help="Run one launch at a time (less precise in the same time)."),
]
On = Annotated[
    str | None,
    typer.Option(help="Measure pairs on several nodes: ray[=ADDRESS] or slurm[='srun options']."),
]
Nodes = Annotated[int, typer.Option(min=0, help="How many nodes (0: all of the cluster or job).")]
Gpus = Annotated[int, typer.Option(min=0, help="GPUs that each pair gets on its node.")]
Format = Annotated[str, typer.Option(help="Form of the answer: text, json or markdown.")]
_ELSE = "(default: as --output ends, else text)."
FileFormat = Annotated[
    str | None,
    typer.Option("--format", help=f"Form of the answer: text, json or markdown {_ELSE}"),
]
ReportFormat = Annotated[
    str | None,
    typer.Option(
        "--format", help=f"Form of the answer: text, json, markdown, html or sarif {_ELSE}"
    ),
]
PageFormat = Annotated[
    str | None,
    typer.Option("--format", help=f"Form of the answer: text, json, markdown or html {_ELSE}"),
]
ExitCode = Annotated[
    bool, typer.Option("--exit-code", help="Exit with 10 where a fix is recommended.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no live progress.")]
Details = Annotated[bool, typer.Option("--details", help="Show the full report.")]


def parse_duration(text: str) -> float:
    """Seconds from "90", "90s", "5m" or "1h"; UsageError for anything else or nothing above 0."""
    unit = _UNITS_S.get(text[-1:].lower())
    digits = text[:-1] if unit else text
    try:
        seconds = float(digits) * (unit or 1.0)
    except ValueError:
        seconds = float("nan")
    if not 0.0 < seconds <= 30 * 86400:
        wrong = "must be longer than 0 s" if seconds <= 0 else "is no duration of 30 days or less"
        raise UsageError(f"'{text}' {wrong}: write it like 90s, 5m or 1h.")
    return seconds


def checked_format(name: str, more: Iterable[str] = ()) -> str:
    """Return the format, by its name of today; raise UsageError for another word."""
    name = "text" if name == "terminal" else name
    formats = (*FORMATS, *more)
    if name not in formats:
        raise UsageError(f"'{name}' is no format: choose {', '.join(formats)}.")
    return name


def format_of(name: str | None, output: Path | None, more: Iterable[str] = ()) -> str:
    """Return the format that was named, else that of the file's ending, else text.

    Raise UsageError for a format that the command does not have.
    """
    if name is None:
        name = _BY_ENDING.get(output.suffix.lower(), "text") if output is not None else "text"
    return checked_format(name, more)


def result_folder(output: Path | None) -> Path | None:
    """Return the folder that a run writes to; raise UsageError for the name of a file."""
    if output is not None and output.suffix.lower() in _ENDINGS and not output.is_dir():
        raise UsageError(
            "--output names a folder here, which gets the result in every form: name it without "
            f"{output.suffix}."
        )
    return output


def isolation(no_sandbox: bool, network: str) -> dict[str, Any]:
    """Return the settings of what launches may reach; raise UsageError for another word."""
    if network not in ("on", "off"):
        raise UsageError(f"--network takes on or off, not '{network}'.")
    return {"sandbox": not no_sandbox, "network": network == "on"}


def place(
    budget: str, on: str | None, nodes: int, gpus_per_pair: int, output: Path | None
) -> dict[str, Any]:
    """Return the settings of time and place; leave with the exit code of a job that ran it all."""
    budget_s = parse_duration(budget)
    output = result_folder(output)
    if on is None and not (nodes or gpus_per_pair) and "SLURM_JOB_ID" not in os.environ:
        return {"budget_s": budget_s, "output": output}
    from torchdoctor.clusters.cluster import placed

    settings, code = placed(budget_s, on, nodes, gpus_per_pair, output)
    if code is not None:
        raise typer.Exit(code)
    return settings


def checked_place(
    budget: str, on: str | None, nodes: int, gpus_per_pair: int, output: Path | None
) -> dict[str, Any]:
    """Return the same of a run that another process starts; no job is asked for."""
    if on is not None or nodes or gpus_per_pair:
        from torchdoctor.clusters.cluster import Cluster

        Cluster.of(on, nodes, gpus_per_pair)
    return {"budget_s": parse_duration(budget), "output": result_folder(output)}


def ids(text: str | None) -> list[str] | None:
    """Ids from "a, b"; None where the option was not given; UsageError where it names nothing."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise UsageError("--fixes and --skip take ids: torchdoctor explain --all lists them.")
    return names


def named_fixes(fixes: Sequence[str] | None) -> list[str]:
    """Return the ids of a `--fixes` that may be repeated and have commas; [] if it is not given."""
    named = list(dict.fromkeys(filter(None, map(str.strip, ",".join(fixes or []).split(",")))))
    if fixes and not named:
        raise UsageError("--fixes names no fix.")
    return named
