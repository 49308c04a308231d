"""Copies from pinned memory still hold the host.

What it means
-------------
A batch lies in pinned memory, but is copied with a call that waits (without non_blocking=True).

How it is measured
------------------
Copies of the probe's step log whose source is pinned and that were not asked to be
non_blocking.

Not to be confused with
-----------------------
Copies from pageable memory, which wait whatever they are asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "memcpy"
THRESHOLD = 1.0
THRESHOLD_UNIT = "blocking copy in each step"
THRESHOLD_SOURCE = "PyTorch Performance Tuning Guide"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.facts.counts import counted
    from torchdoctor.words import Finding

    steps = recording.steps
    blocking = steps.blocking_copies_per_step if steps is not None else None
    if steps is None or blocking is None or blocking < THRESHOLD:
        return []
    return [
        Finding(
            check="copy-without-pinning",
            share_of_step=steps.h2d_copy_s / steps.mean_s,
            evidence=[
                f"The host waits for {counted(blocking, 'copy', 'copies')} a step from pinned "
                "memory."
            ],
            location=None,
            severity="moderate",
        )
    ]


FIRES = [{"steps": {"blocking_copies_per_step": 2.0, "h2d_copy_s": 0.001}}]
QUIET = [{"steps": {"blocking_copies_per_step": 0.0}}, {}]
