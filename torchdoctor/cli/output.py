"""Where a command's report goes: the terminal and the files that were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from torchdoctor.words.errors import UsageError

if TYPE_CHECKING:
    from torchdoctor.words import Report


def write(report: Report, json: Path | None, html: Path | None) -> None:
    """Write the report to the files that were asked for."""
    from torchdoctor.reports.formats import rendered
    from torchdoctor.words.record_files import write_report, write_text

    if json is not None:
        write_report(report, json)
    if html is not None:
        write_text(rendered(report, "html"), html)


def check_tensorboard(folder: Path | None) -> None:
    """Raise UsageError where a TensorBoard folder could not be written at the end."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".torchdoctor-writable"
        probe.write_text("")
        probe.unlink()
    except FileExistsError as error:
        raise UsageError(f"{folder} is no folder: name a folder with --tensorboard.") from error
    except OSError as error:
        raise UsageError(
            f"Cannot write the TensorBoard folder {folder} ({error.strerror or error}): name "
            "another with --tensorboard."
        ) from error


def hand_to_tensorboard(report: Report, folder: Path | None) -> None:
    """Write the event files; say what is missing there, and how to see them."""
    if folder is None:
        return
    from torchdoctor.reports.tensorboard.write import write_tensorboard

    for note in write_tensorboard(report, folder):
        typer.echo(note, err=True)
    typer.echo(f"To see it in TensorBoard: tensorboard --logdir {folder}", err=True)
