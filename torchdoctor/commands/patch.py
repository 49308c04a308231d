"""`torchdoctor patch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

HELP = (
    "Print the recommended edits of your source as one unified diff.\n\n"
    "torchdoctor patch report.json | git apply"
)


def patch(file: Annotated[Path, typer.Argument(help="The report.json of a run.")]) -> None:
    """The diff on stdout, and what cannot be edited on stderr."""
    from torchdoctor.record_files import read_report
    from torchdoctor.reports.patch import remarks

    report = read_report(file)
    sys.stdout.write(report.recommendation.patch or "")
    sys.stdout.flush()
    for line in remarks(report):
        typer.echo(line, err=True)
