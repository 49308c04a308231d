"""Processes that a run left behind."""

from __future__ import annotations

import time
from pathlib import Path

import psutil


def left_in(folder: Path) -> list[list[str]]:
    """Command lines of processes there that do not go away: one that was killed needs a moment.

    A launch in a file system of its own stands in "/": its plan tells where it belongs.
    """
    deadline = time.monotonic() + 60
    while True:
        found = [
            p.info["cmdline"]
            for p in psutil.process_iter(["cwd", "cmdline", "environ"])
            if p.info["cwd"] == str(folder)
            or Path((p.info["environ"] or {}).get("TORCHDOCTOR_PLAN", "/")).is_relative_to(folder)
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
