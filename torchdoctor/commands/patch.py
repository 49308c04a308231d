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


def patch(
    file: Annotated[Path, typer.Argument(help="The report.json of a run.")],
    fix: Annotated[
        str | None,
        typer.Option(help="The edit of this fix alone, recommended or only offered.", metavar="ID"),
    ] = None,
) -> None:
    """The diff on stdout, and what cannot be edited on stderr."""
    from torchdoctor.record_files import read_report
    from torchdoctor.reports.patch import edit_of, remarks, remarks_on

    report = read_report(file)
    if fix is None:
        diff, said = report.recommendation.patch, remarks(report)
    else:
        one = edit_of(report, fix)
        diff, said = one.edit, remarks_on(report, one)
    # As the files are: the terminal's encoding may lack what stands in them.
    sys.stdout.buffer.write((diff or "").encode("utf-8", "surrogateescape"))
    sys.stdout.flush()
    for line in said:
        typer.echo(line, err=True)
