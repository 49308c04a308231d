"""What several commands read from their arguments alike."""

from __future__ import annotations

import os
from pathlib import Path

from torchdoctor.errors import UsageError

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds from "90", "90s", "5m" or "1h"; UsageError for anything else or nothing above 0."""
    unit = _UNITS_S.get(text[-1:].lower())
    digits = text[:-1] if unit else text
    try:
        seconds = float(digits) * (unit or 1.0)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise UsageError(f"'{text}' is no duration: write it like 90s, 5m or 1h.")
    return seconds


def ids(text: str | None) -> list[str] | None:
    """Ids from "a, b"; None where nothing was given."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


_WRITTEN = (".json", ".gz", ".html", ".htm", ".md", ".xml", ".sarif", ".txt")


def check_writable(path: Path | None) -> None:
    """UsageError where a file that is to be written at the end could not be."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"Cannot write {path}: name a file in a folder that exists.")
    written = path.suffix.lower() in _WRITTEN
    if path.is_file() and path.stat().st_size and not written:
        raise UsageError(f"{path} exists and looks like no report: name another file to write.")
