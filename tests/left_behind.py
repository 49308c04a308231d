"""Processes that a run left behind."""

from __future__ import annotations

import time
from pathlib import Path

import psutil


def left_in(folder: Path) -> list[list[str]]:
    """Command lines of processes there that do not go away: one that was killed needs a moment."""
    deadline = time.monotonic() + 60
    while True:
        found = [
            p.info["cmdline"]
            for p in psutil.process_iter(["cwd", "cmdline"])
            if p.info["cwd"] == str(folder)
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
