"""The folder that a run writes to: its own, whoever else begins one at the same moment."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from torchdoctor.schema.errors import UsageError

RUNS = "torchdoctor-runs"  # that runs are written to where no other folder is named
_CLAIM = ".torchdoctor-run"  # in a folder that was asked for: whose it is


def new_run_folder(
    output: Path | None, cwd: str, created: datetime, *, shared: bool = False
) -> Path:
    """Make the folder that a run writes to: the one asked for, or torchdoctor-runs/<time>.

    `shared`: processes of one run may ask for the same folder at once. Raise UsageError if it
    cannot be written, holds something already, or is another run's.
    """
    folder = output or Path(cwd) / RUNS
    try:
        if output is None:
            folder.mkdir(parents=True, exist_ok=True)
            # Recordings are nothing to commit; what is there already, a link too, stays.
            with contextlib.suppress(FileExistsError), (folder / ".gitignore").open("x") as file:
                file.write("*\n")
            folder = _made_for(folder, created)
        else:
            _take(folder, shared)
        with tempfile.TemporaryFile(dir=folder):  # it may be there and not be writable
            pass
    except OSError as error:
        raise UsageError(
            f"Cannot write to {folder} ({error.strerror}): name another folder with --output."
        ) from None
    return folder.absolute()


def _made_for(parent: Path, created: datetime) -> Path:
    """Return a folder that nobody else has made, named by the time and, if need be, a number."""
    name = f"{created:%Y%m%d-%H%M%S}"
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def check_free(folder: Path) -> None:
    """Raise UsageError for a folder that holds something already."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"The folder {folder} is not empty: name a new folder with --output.")


def _take(folder: Path, shared: bool) -> None:
    """Make a folder, or take an empty one; where it is not shared, no other run gets it too."""
    folder.mkdir(parents=True, exist_ok=True)
    check_free(folder)
    if shared:
        return
    try:
        os.close(os.open(folder / _CLAIM, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        check_free(folder)  # another run has made it its own since


@contextlib.contextmanager
def gone_if_refused(folder: Path) -> Iterator[None]:
    """Give up a run folder where UsageError ends the run: one of our own naming goes."""
    try:
        yield
    except UsageError:
        (folder / _CLAIM).unlink(missing_ok=True)
        if folder.parent.name == RUNS:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise UsageError, with what to do, for an OSError in the run folder (a full disk, say)."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"Cannot write to the run folder {folder} ({error.strerror or error}): free some disk "
            "space, or name another folder with --output."
        ) from error
