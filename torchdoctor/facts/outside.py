"""What samples of stacks say of work that is neither data loading nor the model's."""

from __future__ import annotations

import re

from torchdoctor.facts.preparation import (
    computes_unseen,
    is_transform,
    preparing_rows,
    updates_by_hand,
)
from torchdoctor.words.program import StackSample
from torchdoctor.words.recording import Recording

_PHASES = ("after_step", "before_forward", "after_backward", "other")
# Between forward and backward the loss is computed, in operators that no frame of Python shows.
_LOSS = re.compile(r"loss|criterion|entropy|backward|\bmse\b")
# The main thread waits while others train: what it waits at is no work.
_JOINS = re.compile(r"(^|/)threading\.py (join|_join|_wait_for_tstate_lock)\b|_shutdown")


def outside_rows(recording: Recording) -> list[StackSample]:
    """Samples of the main thread in work of the program's own; updates by hand are among them."""
    preparing = preparing_rows(recording)
    return [
        row
        for row in recording.main.stacks
        if _counts(row)
        and row not in preparing
        and not is_transform(recording, row)
        and not computes_unseen(recording, row)
    ]


def outside_share(recording: Recording) -> float:
    """Share of the main thread's time in such work, without updates of weights by hand."""
    total = sum(row.count for row in recording.main.stacks)
    rows = [row for row in outside_rows(recording) if not updates_by_hand(recording, row)]
    return sum(row.count for row in rows) / total if total else 0.0


def _counts(row: StackSample) -> bool:
    if row.phase not in _PHASES:
        return False
    if row.phase == "other" and _LOSS.search(row.text):
        return False
    if _JOINS.search(row.leaf):
        return False
    return "zero_grad" not in row.leaf and "zero_grad" not in row.text
