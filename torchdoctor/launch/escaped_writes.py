"""Files that a program changed although its writes should not have reached them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOOK_AT_MOST = 20_000
LOOK_AT_MOST_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Time of change and size of every file below some folders; `whole`: none was left out."""

    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    whole: bool = True

    def changed_since(self, before: Snapshot) -> list[str]:
        """Return files that are new, changed or gone; of what was left out nothing is said."""
        new = {path for path, facts in self.files.items() if before.files.get(path) != facts}
        gone = set(before.files) - set(self.files) if self.whole else set()
        if not before.whole:
            new = {path for path in new if path in before.files}
        return sorted(new | gone)


def snapshot(folders: Iterable[str], skip: Iterable[str] = ()) -> Snapshot:
    """Look at folders and all below, but for those in `skip`, within bounds of number and time."""
    files: dict[str, tuple[int, int]] = {}
    whole = True
    left_out = {os.path.realpath(path) for path in skip}
    waiting = sorted({os.path.realpath(path) for path in folders})
    deadline = time.monotonic() + LOOK_AT_MOST_S
    looked_at: set[str] = set()
    while waiting:
        folder = waiting.pop(0)
        if folder in looked_at or folder in left_out:
            continue
        looked_at.add(folder)
        if len(files) >= LOOK_AT_MOST or time.monotonic() > deadline:
            whole = False
            break
        try:
            _look(folder, files, waiting)
        except OSError:
            whole = False
    return Snapshot(files=files, whole=whole)


def _look(folder: str, files: dict[str, tuple[int, int]], below: list[str]) -> None:
    """Add what lies in a folder; what comes before an OSError is in."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
            else:
                facts = entry.stat(follow_symlinks=False)
                files[entry.path] = (facts.st_mtime_ns, facts.st_size)


def named_by_probe(channel: Path) -> tuple[list[str], list[str]]:
    """Return paths written outside the redirection and programs started, as the probe saw them."""
    paths: set[str] = set()
    programs: set[str] = set()
    for file in sorted(channel.glob("escaped-*.json")):
        try:
            entries = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for entry in entries:
            if entry.startswith("program: "):
                programs.add(entry.removeprefix("program: "))
            else:
                paths.add(entry)
    return sorted(paths), sorted(programs)


def escape_doubt(escaped: Sequence[str], mode: str) -> list[str]:
    """Return one doubt where writes reached the user's files in spite of the sandbox, else none.

    Args:
        escaped: their paths.
        mode: of the sandbox.
    """
    if not escaped:
        return []
    named = ", ".join(escaped[:5])
    noun = "writes" if len(escaped) > 1 else "write"
    return [f"{len(escaped)} {noun} reached your files in spite of the '{mode}' sandbox: {named}."]
