"""What is piped into us, kept so that each launch of the program reads the same."""

import errno
import os
import select
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchdoctor.launch.run_folder import writing
from torchdoctor.schema import Evidence, fact
from torchdoctor.schema.errors import UsageError

MOST_BYTES = 64 << 20  # of a pipe; a file may be of any size
BEGINS_WITHIN_S = 0.5  # a pipe that nobody writes to would be waited for until it closes
GOES_ON_WITHIN_S = 5.0  # after what came last
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class KeptInput:
    """A file with what the program reads; None: it reads nothing."""

    path: Path | None = None
    doubt: Evidence | None = None  # it may not be all


def keep_stdin(folder: Path) -> KeptInput:
    """Keep what is piped into us in the run folder, readable for its owner alone.

    A file is read where it lies. Raise UsageError where a pipe gives more than `MOST_BYTES`.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return KeptInput()
    try:
        descriptor = sys.stdin.fileno()
        status = os.fstat(descriptor)
        if stat.S_ISCHR(status.st_mode):
            return KeptInput()
        if stat.S_ISREG(status.st_mode):
            return _of_file(descriptor, status, folder)
        if not _has_more(descriptor, BEGINS_WITHIN_S):
            return KeptInput()
    except (OSError, ValueError):
        return KeptInput()
    return _of_pipe(descriptor, folder)


def _has_more(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def _of_file(descriptor: int, status: os.stat_result, folder: Path) -> KeptInput:
    """Return the file itself where it is read from its beginning, else a copy of the rest."""
    if not status.st_size:
        return KeptInput()
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    path = _path_of(descriptor, status)
    if position == 0 and path is not None:
        return KeptInput(path=path)
    kept = folder / "stdin"
    with writing(folder), _private(kept) as file:
        while chunk := os.read(descriptor, _CHUNK):
            file.write(chunk)
    return KeptInput(path=kept if kept.stat().st_size else None)


def _path_of(descriptor: int, status: os.stat_result) -> Path | None:
    """Return the name of an open file, if it still has one."""
    try:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        return path if os.path.samestat(path.stat(), status) else None
    except OSError:
        return None


def _of_pipe(descriptor: int, folder: Path) -> KeptInput:
    """Keep what comes until the pipe is closed, or nothing came for some seconds."""
    kept = folder / "stdin"
    size = 0
    closed = False
    with writing(folder), _private(kept) as file:
        while not closed and _has_more(descriptor, GOES_ON_WITHIN_S):
            chunk = _read(descriptor)
            closed = not chunk
            size += len(chunk)
            if size > MOST_BYTES:
                break
            file.write(chunk)
    if size > MOST_BYTES:
        kept.unlink()
        raise UsageError(
            f"More than {MOST_BYTES >> 20} MiB were piped in, and every launch has to read the "
            "same: put the input into a file and give it with '< FILE', or close it with "
            "'< /dev/null'."
        )
    if not size:
        kept.unlink()
        return KeptInput()
    if closed:
        return KeptInput(path=kept)
    return KeptInput(
        path=kept,
        doubt=fact("input-stayed-open", silent_s=GOES_ON_WITHIN_S, size_bytes=size),
    )


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError as error:
        if error.errno == errno.EIO:  # a terminal that is gone
            return b""
        raise


def _private(path: Path) -> IO[bytes]:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    return os.fdopen(descriptor, "wb")
