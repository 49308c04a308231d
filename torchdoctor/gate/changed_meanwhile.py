"""Source files that were written while a gate measured: its pairs are then of several programs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from torchdoctor.facts.counts import counted


class SourcesAtStart:
    """What the working tree's program had loaded, as it stood then.

    Args:
        sources: paths of files (`ProcessFacts.sources`).
        root: of the repository; what lies elsewhere is nobody's working tree.
    """

    def __init__(self, sources: Iterable[str], root: Path) -> None:
        below = {Path(x) for x in sources if Path(x).is_relative_to(root)}
        self._root = root
        self._seen = {path: _digest(path) for path in below}

    def changed(self) -> str | None:
        """A sentence where one of them is another one by now; None: they are as they were."""
        found = sorted(path for path, then in self._seen.items() if _digest(path) != then)
        if not found:
            return None
        more = f" and {counted(len(found) - 1, 'more file')}" if len(found) > 1 else ""
        return (
            f"{found[0].relative_to(self._root)}{more} changed while the gate measured: its pairs "
            "are of several programs. Measure again."
        )


def _digest(path: Path) -> bytes | None:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None
