"""The folder that a run writes to, and what was piped into the run."""

import contextlib
import os
import select
import stat
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from torchdoctor.words.errors import UsageError


def new_run_folder(output: Path | None, cwd: str, created: datetime) -> Path:
    """Make the folder that a run writes to: the one asked for, or torchdoctor-runs/<time>.
    Raise UsageError if it cannot be written, or holds something already.
    """
    folder = output
    if folder is None:
        folder = Path(cwd) / "torchdoctor-runs" / created.strftime("%Y%m%d-%H%M%S")
        number = 2
        while folder.exists():
            folder = folder.with_name(f"{created:%Y%m%d-%H%M%S}-{number}")
            number += 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if output is None:  # recordings are nothing to commit
            (folder.parent / ".gitignore").write_text("*\n")
        if any(folder.iterdir()):
            raise UsageError(f"The folder {folder} is not empty: name a new folder with --output.")
        probe = folder / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"Cannot write to {folder} ({error.strerror}): name another folder with --output."
        ) from None
    return folder.absolute()


def keep_stdin(folder: Path) -> Path | None:
    """Keep what is piped into us, so that each launch reads the same; None: nothing is."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return None
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
        # A pipe that nobody writes to would be waited for until it closes.
        ready = stat.S_ISREG(kind) or select.select([sys.stdin], [], [], 0.2)[0]
        data = sys.stdin.buffer.read() if ready and not stat.S_ISCHR(kind) else b""
    except (OSError, ValueError):
        return None
    if not data:
        return None
    path = folder / "stdin"
    with writing(folder):
        path.write_bytes(data)
    return path


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
