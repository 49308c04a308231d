"""A file of JSON lines that a long benchmark adds to, and goes on from when it is started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What is there; a line that was cut off when the benchmark was stopped is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def append(path: Path, row: dict[str, Any]) -> None:
    """A line of its own, also where the one before was cut off."""
    whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("" if whole else "\n") + json.dumps(row) + "\n")
