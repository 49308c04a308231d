"""The front door: parses the command line, prints, and sets exit codes. It decides nothing.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchdoctor import __version__
from torchdoctor.errors import TorchdoctorError, UsageError

if TYPE_CHECKING:
    from torchdoctor.records import Report

app = typer.Typer(
    name="torchdoctor",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Why is this PyTorch training slow, what exactly should change, and how much faster "
    "will it be: measured here, with an interval, and with proof that training stays the same.",
    epilog="Exit codes: 0 done, 2 usage, 3 the program failed, 4 no training step found, "
    "5 timed out, 70 a defect of torchdoctor, 130 interrupted (what was measured is kept).",
)

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FORMATS = ("terminal", "html", "markdown", "json", "sarif")


def parse_duration(text: str) -> float:
    """Seconds from "90", "90s", "5m" or "1h"; UsageError for anything else or nothing above 0."""
    unit = _UNITS_S.get(text[-1:].lower())
    digits = text[:-1] if unit else text
    try:
        seconds = float(digits) * (unit or 1.0)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise UsageError(f"'{text}' is no duration: write it like 90s, 5m or 1h.")
    return seconds


def _ids(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"torchdoctor {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Why is this PyTorch training slow, and what exactly should change?"""


@app.command(
    context_settings={"allow_interspersed_args": False},
    help="Observe a training program, diagnose it, try fixes on it, and rank them as measured.\n\n"
    "torchdoctor run \\[options] train.py \\[its arguments]\n\n"
    "torchdoctor run \\[options] -- any command (torchrun ..., python -m pkg ...)",
)
def run(
    command: Annotated[list[str], typer.Argument(help="The script, or after -- any command.")],
    budget: Annotated[str, typer.Option(help="Time for everything, e.g. 90s, 5m, 1h.")] = "5m",
    json: Annotated[Path | None, typer.Option(help="Also write the report as JSON here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the report as HTML here.")] = None,
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
        str | None, typer.Option(help="Try only these fixes, comma-separated.")
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
        int, typer.Option(help="Seed for a program that sets none, so that runs compare.")
    ] = 0,
    python: Annotated[
        str | None, typer.Option(help="The Python that runs the script (default: the active one).")
    ] = None,
    no_sandbox: Annotated[
        bool,
        typer.Option("--no-sandbox", help="Let the program write to your files, every launch."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No live progress.")] = False,
) -> None:
    """Observe, diagnose, try fixes, rank."""
    from torchdoctor.checkup import RunSettings, checkup
    from torchdoctor.recording.launch import workload_of
    from torchdoctor.reports.progress import Progress

    settings = RunSettings(
        budget_s=parse_duration(budget),
        timeout_s=parse_duration(timeout),
        output=output,
        steps=steps,
        warmup=warmup,
        fixes=_ids(fixes),
        skip=_ids(skip) or [],
        no_fixes=no_fixes,
        allow_training_changes=allow_training_changes,
        step_on=step_on,
        seed=seed,
        sandbox=not no_sandbox,
    )
    for path in (json, html):
        _check_writable(path)
    workload = workload_of(command, python=python)
    with Progress(quiet=quiet) as progress:
        report = checkup(workload, settings, progress=progress.update)
    _write(report, json, html)
    _print(report)
    if report.interrupted:
        raise typer.Exit(130)


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="A report.json.")],
    format: Annotated[str, typer.Option(help="terminal, html, markdown, json or sarif.")] = (
        "terminal"
    ),
) -> None:
    """Render a report again, without torch."""
    from torchdoctor.record_files import read_report

    typer.echo(_render(read_report(file), format), nl=format != "json")


@app.command()
def explain(
    id: Annotated[str | None, typer.Argument(help="A check's or fix's id.")] = None,
    tree: Annotated[bool, typer.Option("--tree", help="The decision tree.")] = False,
    all: Annotated[bool, typer.Option("--all", help="Every id with its title.")] = False,
) -> None:
    """Print a check's or fix's page: what, why, when not, risk, sources."""
    from torchdoctor import catalogue

    if tree:
        typer.echo(catalogue.tree())
    elif all or id is None:
        typer.echo(catalogue.listing())
    else:
        typer.echo(catalogue.explain(id))


@app.command()
def env() -> None:
    """What torchdoctor sees of this machine, and what that rules out."""
    from torchdoctor.machine import describe_environment

    for line in describe_environment():
        typer.echo(line)


def _check_writable(path: Path | None) -> None:
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"Cannot write {path}: name a file in a folder that exists.")


def _render(report: Report, format: str) -> str:
    from importlib import import_module

    modules = {"json": "json_report"}
    if format not in _FORMATS:
        raise UsageError(f"'{format}' is no format: choose {', '.join(_FORMATS)}.")
    module: Any = import_module(f"torchdoctor.reports.{modules.get(format, format)}")
    rendered: str = module.render(report)
    return rendered


def _write(report: Report, json: Path | None, html: Path | None) -> None:
    from torchdoctor.record_files import write_report, write_text

    if json is not None:
        write_report(report, json)
    if html is not None:
        write_text(_render(report, "html"), html)


def _print(report: Report) -> None:
    from torchdoctor.reports.terminal import print_report

    print_report(report)


def _defect(error: BaseException) -> int:
    """Save our own traceback and say how to report it: the user never reads it on the screen."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="torchdoctor-defect-", suffix=".txt", delete=False
    ) as file:
        file.write(f"torchdoctor {__version__}\nargv: {sys.argv}\n\n")
        traceback.print_exception(error, file=file)
    typer.echo(
        f"torchdoctor: this is a defect of torchdoctor ({type(error).__name__}: {error}). "
        f"Please report it with the file {file.name}.",
        err=True,
    )
    return 70


def main() -> None:
    """Entry point: every expected failure is one sentence and its exit code."""
    try:
        app()
    except TorchdoctorError as error:
        typer.echo(f"torchdoctor: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("torchdoctor: interrupted.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone (| head): not an error of ours, and not worth a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        sys.exit(_defect(error))


if __name__ == "__main__":
    main()
