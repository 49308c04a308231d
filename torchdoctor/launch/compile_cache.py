"""Keeps what torch.compile made of a program for its next run, in the user's cache folder."""

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

from torchdoctor.machine.environment import versions
from torchdoctor.words import Workload

LIMIT = "TORCHDOCTOR_COMPILE_CACHE"  # GB that all programs' folders may take; 0: nothing is kept
_USUAL_LIMIT = "2"


def kept_folder(workload: Workload) -> Path | None:
    """Return the folder of this program with this Python and torch; None: nothing can be kept."""
    if not _most_bytes():
        return None
    known = versions(workload.python or sys.executable)
    program = [workload.cwd, workload.script or " ".join(workload.command)]
    key = repr([known.get("python"), known.get("torch"), *program])
    try:
        folder = _folders() / hashlib.sha256(key.encode()).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(folder)
    except (OSError, RuntimeError):  # a cache folder that is read-only, a user without a home
        return None
    return folder


def remove_oldest() -> None:
    """Remove the folders that were used longest ago, until the rest is within the limit."""
    left = _most_bytes()
    try:
        used_s = {path: path.stat().st_mtime for path in _folders().iterdir()}
    except (OSError, RuntimeError):
        return
    for folder in sorted(used_s, key=lambda path: used_s[path], reverse=True):
        left -= sum(path.lstat().st_size for path in folder.rglob("*"))
        # Into one that was taken up within the hour another run may still compile.
        if left < 0 and used_s[folder] < time.time() - 3600:
            shutil.rmtree(folder, ignore_errors=True)


def _most_bytes() -> float:
    try:
        return float(os.environ.get(LIMIT) or _USUAL_LIMIT) * 1e9
    except ValueError:
        return 0.0  # "off"


def _folders() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchdoctor/compiled"
