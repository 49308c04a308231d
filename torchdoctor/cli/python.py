"""`torchdoctor.run` and `torchdoctor.report`: the commands, which hand their report to Python."""

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer

from torchdoctor.cli.front import UNUSABLE, app
from torchdoctor.cli.stored import report_file
from torchdoctor.reports.formats import PythonReport, in_python
from torchdoctor.schema import Report
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import read_report


def run(command: str | Iterable[str | Path], options: Mapping[str, object]) -> PythonReport:
    """Return the report of `torchdoctor run`; the package's `run` describes it."""
    try:
        words = (
            shlex.split(command)
            if isinstance(command, str)
            else [os.fspath(word) for word in command]
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"Give the command as a line or as a list of words ({error}).") from error
    return run_words([*_words(options), "--", *words])


def run_words(words: list[str]) -> PythonReport:
    """Return the report of `torchdoctor run` with these words behind it."""
    parser = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    reports: list[Report] = []
    try:
        parser.invoke(parser.make_context("run", words, obj=reports.append))
    except UNUSABLE as error:
        raise UsageError(error.format_message()) from error  # type: ignore[attr-defined]
    return in_python(reports[0])


def report(path: str | Path | None) -> PythonReport:
    """Return a stored report; the package's `report` describes it."""
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"Give the path of a report, not {type(path).__name__}.")
    return in_python(read_report(report_file(None if path is None else Path(path))))


def _words(options: Mapping[str, object]) -> list[str]:
    """Return options of Python as the command line has them: no_fixes=True is --no-fixes."""
    words = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        listed = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        if value is not None and value is not False:
            words.append(option if value is True else f"{option}={listed}")
    return words
