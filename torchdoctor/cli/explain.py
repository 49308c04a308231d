"""`torchdoctor explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from torchdoctor.cli.arguments import report_file
from torchdoctor.words.errors import UsageError

_TREE_HANGS = 8


def explain(
    id: Annotated[str | None, typer.Argument(help="A check's or fix's id.")] = None,
    tree: Annotated[bool, typer.Option("--tree", help="The decision tree.")] = False,
    all: Annotated[bool, typer.Option("--all", help="Every id with its title.")] = False,
) -> None:
    """Print a check's or fix's page: what, why, when not, risk, sources."""
    from torchdoctor.advice import catalogue
    from torchdoctor.reports.wrapping import fill, reflow, width

    if id is not None and (tree or all):
        raise UsageError(f"Give '{id}', or --tree, or --all: one of them.")
    if tree:
        for line in catalogue.tree().splitlines():
            typer.echo(fill(line, _TREE_HANGS, width()))
    elif all or id is None:
        for line in catalogue.listing().splitlines():
            typer.echo(fill(line, catalogue.TITLES_AT, width()))
    else:
        typer.echo(reflow(catalogue.explain(id), width()))
        for line in _in_newest_run(id):
            typer.echo(fill(line, 2, width()))


def _in_newest_run(ident: str) -> list[str]:
    """Return what the newest run of this folder says of a check or fix; nothing without a run."""
    from torchdoctor.reports.details import lines_about
    from torchdoctor.words.record_files import read_report

    try:
        file = report_file(None)
        lines = lines_about(read_report(file), ident)
    except UsageError:
        return []
    return ["", f"In the newest run here ({file.parent}):", *lines] if lines else []
