"""Gradients are set to zero instead of None.

What it means
-------------
zero_grad(set_to_none=False) writes zeros into every gradient, and the next backward reads them
to add to them.

How it is measured
------------------
Calls with set_to_none=False, with the line of the first.

Not to be confused with
-----------------------
The default since torch 2.0, which is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
THRESHOLD = 1
THRESHOLD_UNIT = "call of zero_grad(set_to_none=False)"
THRESHOLD_SOURCE = "PyTorch Performance Tuning Guide"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.words import Finding

    flags = recording.main.flags
    if flags.zero_grad_to_zero < THRESHOLD:
        return []
    return [
        Finding(
            check="zero-grad-to-zero",
            share_of_step=None,
            evidence=[f"zero_grad(set_to_none=False) was called {flags.zero_grad_to_zero} times."],
            location=flags.zero_grad_location,
            severity="advice",
        )
    ]


FIRES = [{"processes": [{"pid": 1, "flags": {"zero_grad_to_zero": 30}}]}]
QUIET = [{"processes": [{"pid": 1, "flags": {"zero_grad_to_zero": 0}}]}]
