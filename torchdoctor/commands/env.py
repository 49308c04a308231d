"""`torchdoctor env`."""

from __future__ import annotations

from typing import Annotated

import typer

from torchdoctor.commands.arguments import parse_duration


def env(
    noise: Annotated[
        bool,
        typer.Option(
            "--noise", help="Also measure how noisy this machine is, and what it can still tell."
        ),
    ] = False,
    budget: Annotated[str, typer.Option(help="Time for --noise.")] = "60s",
) -> None:
    """What torchdoctor sees of this machine, and what that rules out."""
    from torchdoctor.machine import FIGURES_AT, describe_environment
    from torchdoctor.reports.wrapping import fill, width

    for line in describe_environment():
        typer.echo(fill(line, 4 if line.startswith(" ") else FIGURES_AT, width()))
    if not noise:
        return
    from torchdoctor.machine_noise import measure_noise, noise_lines

    found = measure_noise(parse_duration(budget), lambda text: typer.echo(text, err=True))
    typer.echo("")
    for line in noise_lines(found):
        typer.echo(fill(line, 0, width()))
