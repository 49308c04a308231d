"""`torchdoctor explain`."""

from __future__ import annotations

from typing import Annotated

import typer

_TREE_HANGS = 8


def explain(
    id: Annotated[str | None, typer.Argument(help="A check's or fix's id.")] = None,
    tree: Annotated[bool, typer.Option("--tree", help="The decision tree.")] = False,
    all: Annotated[bool, typer.Option("--all", help="Every id with its title.")] = False,
) -> None:
    """Print a check's or fix's page: what, why, when not, risk, sources."""
    from torchdoctor.advice import catalogue
    from torchdoctor.reports.wrapping import fill, reflow, width
    from torchdoctor.words.errors import UsageError

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
