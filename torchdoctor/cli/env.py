"""`torchdoctor env`."""

from __future__ import annotations

import typer


def env() -> None:
    """What torchdoctor sees of this machine, and what that rules out."""
    from torchdoctor.checkup.machine import FIGURES_AT, describe_environment
    from torchdoctor.reports.wrapping import fill, width

    for line in describe_environment():
        typer.echo(fill(line, 4 if line.startswith(" ") else FIGURES_AT, width()))
