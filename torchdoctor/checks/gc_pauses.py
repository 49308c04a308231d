"""Python's garbage collector interrupts the steps.

What it means
-------------
A full collection walks through every Python object. In programs with millions of them it takes
a good part of a second, again and again.

How it is measured
------------------
Collections longer than 0.1 ms, from Python's own gc callbacks, over the step.

Not to be confused with
-----------------------
Freeing tensors, which needs no collection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
THRESHOLD = 0.02
THRESHOLD_UNIT = "% of the step"
THRESHOLD_SOURCE = "torchdoctor: the least share of a step that is worth a trial"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.words import Finding

    steps = recording.steps
    if steps is None or steps.mean_s <= 0 or steps.gc_s / steps.mean_s < THRESHOLD:
        return []
    share = steps.gc_s / steps.mean_s
    return [
        Finding(
            check="gc-pauses",
            share_of_step=share,
            evidence=[f"Garbage collection takes {share:.1%} of the training time."],
            location=None,
            severity="moderate",
        )
    ]


FIRES = [{"steps": {"gc_s": 0.001}}]
QUIET = [{"steps": {"gc_s": 0.00001}}]
