"""The line of the user's own code that samples are prepared by, or wait in. Pure."""

from __future__ import annotations

import re

from torchdoctor.facts.lookup import place, training_loaders
from torchdoctor.facts.samples import by_function
from torchdoctor.words.recording import Recording

_FEWEST = 20  # samples of stacks
_ASKS = re.compile(r"^(async )?for\b|\bnext\(")  # for a batch: library code ran below it


def preparing_line(recording: Recording) -> str | None:
    """A sentence; None with workers, whose stacks nobody samples, or where nothing stands out."""
    loaders = training_loaders(recording)
    rows = [row for row in recording.main.stacks if row.phase == "loader"]
    total = sum(row.count for row in rows)
    if not loaders or loaders[0].num_workers or total < _FEWEST:
        return None
    slowest = by_function(rows)[0]
    top = slowest.top
    if slowest.count < 0.5 * total or top.location.function in (None, "<module>"):
        return None
    if _ASKS.search(top.text):
        return None
    share = slowest.count / total
    at = place(recording, top.location, "")
    text = f" ({top.text})" if top.text else ""
    return f"{share:.0%} of it was in {top.location.function}, most often at {at}{text}."
