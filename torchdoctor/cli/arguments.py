"""What several commands read from their arguments alike."""

from __future__ import annotations

from pathlib import Path

from torchdoctor.words.errors import UsageError

SEEDS = 2**32 - 1  # the largest that NumPy takes
RUNS = "torchdoctor-runs"  # that runs are written to where no other folder is named
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds from "90", "90s", "5m" or "1h"; UsageError for anything else or nothing above 0."""
    unit = _UNITS_S.get(text[-1:].lower())
    digits = text[:-1] if unit else text
    try:
        seconds = float(digits) * (unit or 1.0)
    except ValueError:
        seconds = float("nan")
    if not 0.0 < seconds < float("inf"):
        what = "must be longer than nothing" if seconds <= 0 else "is no duration"
        raise UsageError(f"'{text}' {what}: write it like 90s, 5m or 1h.")
    return seconds


def ids(text: str | None) -> list[str] | None:
    """Ids from "a, b"; None where the option was not given; UsageError where it names nothing."""
    if text is None:
        return None
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise UsageError("--fixes and --skip take ids: torchdoctor explain --all lists them.")
    return found


def report_file(named: Path | None) -> Path:
    """Return the report that was named, else that of the newest run below this folder.

    Raises:
        UsageError: none was named, and there is no run.
    """
    if named is not None:
        return named
    reports = list(Path(RUNS).glob("*/report.json"))
    if not reports:
        raise UsageError(
            f"There is no run in {RUNS} below this folder: name a report.json, or measure a "
            "program first with: torchdoctor run train.py"
        )
    return max(reports, key=lambda path: path.stat().st_mtime)
