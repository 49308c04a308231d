"""`torchdoctor explain`."""

from __future__ import annotations

from typing import Annotated

import typer


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
