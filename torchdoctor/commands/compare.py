"""`torchdoctor compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchdoctor.errors import UsageError

if TYPE_CHECKING:
    from torchdoctor.records import Report

HELP = (
    "What changed from one report or trace to another: by branch, operator and finding.\n\n"
    "torchdoctor compare before.json after.json\n\n"
    "torchdoctor compare before.trace.json.gz after.trace.json.gz"
)


def compare(
    first: Annotated[Path, typer.Argument(help="A report.json, or a trace.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
) -> None:
    """Explain the difference."""
    from torchdoctor.comparison import compare as compared
    from torchdoctor.reports.comparison import terminal

    typer.echo(terminal(compared(_read(first), _read(second))), nl=False)


def _read(path: Path) -> Report:
    """A report, or a trace that is diagnosed first; told apart by what is in it."""
    from torchdoctor.record_files import read_report
    from torchdoctor.trace_checkup import trace_checkup

    try:
        return read_report(path)
    except UsageError as no_report:
        if not path.exists():
            raise
        try:
            return trace_checkup([str(path)])
        except UsageError:
            raise UsageError(f"{path} is neither a report nor a trace. {no_report}") from None
