"""What several commands read from their arguments alike."""

from __future__ import annotations

import os
from pathlib import Path

from torchdoctor.errors import UsageError

SEEDS = 2**32 - 1  # the largest that NumPy takes
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_WRITTEN = (".json", ".gz", ".html", ".htm", ".md", ".xml", ".sarif", ".txt")


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
    """Ids from "a, b"; None where the option was not given; UsageError where it names nothing."""
    if text is None:
        return None
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise UsageError("--fixes and --skip take ids: torchdoctor explain --all lists them.")
    return found


def check_writable(path: Path | None) -> None:
    """UsageError where a file that is to be written at the end could not be."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"Cannot write {path}: name a file in a folder that exists.")
    if path.is_file() and path.stat().st_size and path.suffix.lower() not in _WRITTEN:
        raise UsageError(f"{path} exists and looks like no report: name another file to write.")
