"""`torchdoctor env`."""

from __future__ import annotations

import typer


def env() -> None:
    """What torchdoctor sees of this machine, and what that rules out."""
    from torchdoctor.machine import describe_environment

    for line in describe_environment():
        typer.echo(line)
