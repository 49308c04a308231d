"""Work of the program's own between the passes of the model.

What it means
-------------
Metrics in Python, checkpoints, logging, plots, the environment of reinforcement learning: what
runs in the loop outside forward, backward and optimizer makes the device (or the CPU's arithmetic)
wait for it.

How it is measured
------------------
The share is the step's time that is neither data loading nor copies nor any operator nor phase of
the model. Stacks of the main thread, sampled in that time, say which of your functions it was in;
a library's work counts for your line that called it.

Not to be confused with
-----------------------
Batches prepared in the loop (inline-batch-preparation), and Python inside the model's own forward
(python-overhead).
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.records import Finding, Recording, StackSample

UNDER = "other"
THRESHOLD = 0.10
THRESHOLD_SOURCE = "torchdoctor: a tenth of the step is worth a look"

_PHASES = ("after_step", "before_forward", "after_backward", "other")
# Between forward and backward the loss is computed, in operators that no frame of Python shows.
_LOSS = re.compile(r"loss|criterion|entropy|backward|\bmse\b")
_NAMED = 3


def look(recording: Recording) -> list[Finding]:
    """A finding at the function that takes most of it."""
    from torchdoctor.records import Finding
    from torchdoctor.records.preparation import computes_unseen, preparing_rows

    outside = recording.shares.other
    preparing = preparing_rows(recording)
    rows = [
        row
        for row in recording.main.stacks
        if _counts(row) and row not in preparing and not computes_unseen(recording, row)
    ]
    samples = sum(row.count for row in recording.main.stacks)
    if outside is None or outside < THRESHOLD or not rows:
        return []
    share = min(sum(row.count for row in rows) / samples, outside)
    if share < THRESHOLD:
        return []
    functions: dict[tuple[str, str], list[StackSample]] = {}
    for row in rows:
        functions.setdefault((row.location.file, row.location.function or ""), []).append(row)
    ranked = sorted(functions.values(), key=_count, reverse=True)
    return [
        Finding(
            check="work-outside-model",
            share_of_step=share,
            evidence=[
                f"{share:.0%} of each step passes outside data loading and the model.",
                f"There it was in {_named(ranked)}.",
            ],
            location=_top(ranked[0]).location,
            severity="high" if share >= 0.3 else "moderate",
        )
    ]


def _counts(row: StackSample) -> bool:
    if row.phase not in _PHASES:
        return False
    if row.phase == "other" and _LOSS.search(row.text):
        return False
    return "zero_grad" not in row.leaf and "zero_grad" not in row.text


def _count(rows: list[StackSample]) -> int:
    return sum(row.count for row in rows)


def _top(rows: list[StackSample]) -> StackSample:
    return max(rows, key=lambda row: row.count)


def _named(ranked: list[list[StackSample]]) -> str:
    """ "accuracy at train.py:12 (83%), ..."; the script's own lines without a name."""
    total = sum(_count(rows) for rows in ranked)
    parts = []
    for rows in ranked[:_NAMED]:
        place = _top(rows).location
        line = f"{PurePath(place.file).name}:{place.line}"
        known = place.function and place.function != "<module>"
        name = f"{place.function} at {line}" if known else line
        parts.append(f"{name} ({_count(rows) / total:.0%})")
    return ", ".join(parts)


_ROW = {
    "location": {"file": "/w/train.py", "line": 12, "function": "accuracy"},
    "phase": "after_step",
    "count": 30,
    "leaf": "w/train.py accuracy",
    "text": "hits += arg == t.item()",
}
_MODEL = {**_ROW, "phase": "backward", "count": 70, "text": "loss.backward()"}
_LOADED = {"data_loader": 0.02, "cpu": 0.68, "other": 0.3}
_STEPS = {"boundary": {"kind": "loader"}, "steps": 9, "mean_s": 0.01, "median_s": 0.01}
FIRES = [{"shares": _LOADED, "steps": _STEPS, "processes": [{"pid": 1, "stacks": [_ROW, _MODEL]}]}]
QUIET = [
    {"shares": _LOADED, "processes": [{"pid": 1, "stacks": [_MODEL]}]},
    {
        "shares": {"data_loader": 0.02, "cpu": 0.95, "other": 0.03},
        "processes": [{"pid": 1, "stacks": [_ROW, _MODEL]}],
    },
    {
        "shares": _LOADED,
        "processes": [
            {"pid": 1, "stacks": [{**_ROW, "phase": "other", "text": "loss = f(x)"}, _MODEL]}
        ],
    },
]
