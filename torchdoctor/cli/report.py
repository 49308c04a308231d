"""`torchdoctor report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchdoctor.cli.output import render


def report(
    file: Annotated[Path, typer.Argument(help="A report.json.")],
    format: Annotated[str, typer.Option(help="terminal, html, markdown, json or sarif.")] = (
        "terminal"
    ),
) -> None:
    """Render a report again, without torch."""
    from torchdoctor.words.record_files import read_report

    typer.echo(render(read_report(file), format), nl=format != "json")
