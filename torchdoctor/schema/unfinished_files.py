"""New files that are to take the place of others, and those that a killed process left."""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and what was left stays
    fcntl = None  # type: ignore[assignment]

_NAME = ".torchdoctor-{}.tmp"
_ANY = _NAME.format("[0-9a-f]" * 16)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW
_LOOK = os.O_RDONLY | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)  # a pipe would be waited for


@contextlib.contextmanager
def new_beside(target: Path, mode: int) -> Iterator[tuple[Path, int]]:
    """Yield a new file and its descriptor, which the block closes; remove what others left.

    It is locked within the block, where it takes the place of the target, or goes.
    """
    _remove_left(target.parent)
    path, handle = _locked(target, mode)
    held = os.dup(handle) if fcntl is not None else None  # the lock of one is that of both
    try:
        yield path, handle
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        if held is not None:
            os.close(held)


def _locked(target: Path, mode: int) -> tuple[Path, int]:
    while True:
        # Of a name that nobody can foresee: the folder may be open to others, who could put a link.
        path = target.with_name(_NAME.format(secrets.token_hex(8)))
        handle = os.open(path, _NEW, mode)
        if _lock(handle) is None or path.exists():
            return path, handle
        os.close(handle)  # before it was locked, another process took it for one that was left


def _remove_left(folder: Path) -> None:
    """Remove the files of this user that nobody writes any more: their process was killed."""
    if fcntl is None:
        return
    for path in folder.glob(_ANY):
        with contextlib.suppress(OSError):
            handle = os.open(path, _LOOK)
            try:
                status = os.fstat(handle)
                ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
                if ours and _lock(handle, fcntl.LOCK_NB):
                    path.unlink()
            finally:
                os.close(handle)


def _lock(handle: int, how: int = 0) -> bool | None:
    """Lock a file; False: another process has it. None: this file system knows no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | how)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
