"""Write a report below a TensorBoard log folder."""

from __future__ import annotations

import time
from pathlib import Path

from torchdoctor.reports import markdown
from torchdoctor.reports.formats import document
from torchdoctor.reports.tensorboard.event_file import EventFile
from torchdoctor.reports.tensorboard.images import write_images
from torchdoctor.reports.tensorboard.measured import read_measured
from torchdoctor.reports.tensorboard.profile_folder import write_traces
from torchdoctor.reports.tensorboard.scalars import write_figures, write_launches, write_observed
from torchdoctor.reports.tensorboard.trials import write_trials
from torchdoctor.words import Report
from torchdoctor.words.errors import UsageError

_RUN = "run"


def write_tensorboard(report: Report, folder: Path) -> list[str]:
    """Write a report below a log folder; what other runs wrote there stays.

    `<folder>/<when>/run` holds scalars, text and images, `<when>/baseline` and `<when>/recommended`
    the steps of the timed launches, `<when>/trials/<nn>-<fix>` one HParams session for each trial,
    and `<folder>/plugins/profile/<when>` the traces.

    Returns:
        What could not be written, and why, in sentences.

    Raises:
        UsageError: the folder cannot be written.
    """
    when = _unused(folder, report.created)
    measured = read_measured(report)
    try:
        with EventFile.into(folder / when / _RUN) as writer:
            write_figures(writer, report)
            write_observed(writer, measured)
            for number, (title, text) in enumerate(markdown.titled(document(report)), 1):
                writer.text(f"report/{number:02d} {title}", text)
            notes = write_images(writer, report, measured)
        write_launches(folder / when, measured)
        write_trials(report, folder / when / "trials")
        write_traces(report, folder / "plugins" / "profile" / when)
    except OSError as error:
        raise UsageError(
            f"Cannot write the TensorBoard folder {folder} ({error.strerror or error}): name "
            "another with --tensorboard."
        ) from error
    return notes


def _unused(folder: Path, created: str) -> str:
    """Return a name by the report's time, such as 20260101T120000; numbered where it is taken."""
    plain = "".join(c for c in created.partition("+")[0] if c.isalnum())
    when = plain or time.strftime("%Y%m%dT%H%M%S")
    number = 2
    name = when
    while (folder / name).exists():
        name, number = f"{when}-{number}", number + 1
    return name
