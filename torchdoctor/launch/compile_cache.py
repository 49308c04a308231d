"""Keeps what torch.compile made, of programs and of the machine, in the user's cache folder."""

import contextlib
import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

from torchdoctor.machine.environment import versions
from torchdoctor.schema import Workload

LIMIT = "TORCHDOCTOR_COMPILE_CACHE"  # GB that it may take, 2 if unset; 0: nothing is kept

_LEAST_FREE_BYTES = 256 << 20


def kept_folder(workload: Workload) -> Path | None:
    """Return the folder of this Python and torch; None: nothing can be kept, or has room."""
    if not _most_bytes():
        return None
    installed = versions(workload.python or sys.executable)
    try:
        folder = _folders() / f"python-{installed.get('python')}-torch-{installed.get('torch')}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a cache folder that is read-only, a user without a home
        return None
    has_room = shutil.disk_usage(folder).free > _LEAST_FREE_BYTES  # else compiling would fail
    return folder if has_room and os.access(folder, os.W_OK) else None


def is_next_run(workload: Workload, folder: Path) -> bool:
    """Note in the folder that this program compiled; return True if it had been noted before."""
    program = repr([workload.cwd, workload.script or " ".join(workload.command)])
    note = folder / "programs" / hashlib.sha256(program.encode()).hexdigest()[:16]
    was_noted = note.exists()
    with contextlib.suppress(OSError):
        note.mkdir(parents=True, exist_ok=True)
    return was_noted


def remove_oldest() -> None:
    """Remove the files that were used longest ago, until the rest is within the limit."""
    left = _most_bytes()
    hour_ago_s = time.time() - 3600
    with contextlib.suppress(OSError, RuntimeError):
        statuses = [(path, path.lstat()) for path in _folders().rglob("*") if path.is_file()]
        files = [(max(it.st_atime, it.st_mtime), it.st_size, path) for path, it in statuses]
        for used_s, size, path in sorted(files, reverse=True):
            left -= size
            # What was used within the hour another run may still need.
            if left < 0 and used_s < hour_ago_s:
                path.unlink(missing_ok=True)


def _most_bytes() -> float:
    try:
        return float(os.environ.get(LIMIT) or 2) * 1e9
    except ValueError:
        return 0.0  # "off"


def _folders() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchdoctor/compiled"
