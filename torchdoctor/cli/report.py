"""`torchdoctor report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli.arguments import Details, report_file


def report(
    file: Annotated[
        Path | None,
        typer.Argument(help="A report.json, or a run's folder (default: the newest run here)."),
    ] = None,
    format: Annotated[str, typer.Option(help="terminal, html, markdown, json or sarif.")] = (
        "terminal"
    ),
    details: Details = False,
) -> None:
    """Render a report again, without torch."""
    from torchdoctor.reports.formats import rendered, show
    from torchdoctor.words.record_files import read_report

    read = read_report(report_file(file))
    if format == "terminal":
        show(read, details)
    else:
        typer.echo(rendered(read, format, folder=str(Path.cwd())), nl=format != "json")
