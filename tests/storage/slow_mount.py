"""A real slow file system for tests: bindfs, a FUSE file system with a limit on reading."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


def missing() -> str | None:
    """Why no FUSE file system can be mounted here, or None."""
    if shutil.which("bindfs") is None:
        return "bindfs is not installed (Debian and Ubuntu: apt-get install bindfs)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be used here"
    return None


@contextlib.contextmanager
def slow_mount(folder: Path, bytes_per_s: int = 400_000, direct: bool = False) -> Iterator[Path]:
    """Show `folder` at a place beside it, from where it can be read only this fast.

    Opened again, a file is read again; `direct`: it never gets into the page cache, and cannot be
    mapped.
    """
    mounted = folder.with_name(folder.name + "-slow")
    mounted.mkdir()
    options = ["-o", "direct_io"] if direct else []
    command = ["bindfs", f"--read-rate={bytes_per_s}", *options, str(folder), str(mounted)]
    if os.getuid():
        command.insert(1, "--no-allow-other")
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    try:
        yield mounted
    finally:
        _unmount(mounted)


def _unmount(mounted: Path) -> None:
    tool = shutil.which("fusermount3") or shutil.which("fusermount") or "umount"
    command = [tool, "-u", str(mounted)] if "fusermount" in tool else [tool, str(mounted)]
    for _ in range(20):
        if subprocess.run(command, capture_output=True).returncode == 0:
            return
        time.sleep(0.2)  # still in use: a worker of the program is just ending
    subprocess.run(["umount", "-l", str(mounted)], check=True, capture_output=True)
