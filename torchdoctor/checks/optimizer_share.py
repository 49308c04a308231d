"""The optimizer takes a large share of the step.

What it means
-------------
Updating the parameters costs memory bandwidth or dispatch. With small batches it can be as long
as the backward.

How it is measured
------------------
Time inside optimizer.step() without the closure's forward and backward, over the step.

Not to be confused with
-----------------------
The closure of LBFGS, which is forward and backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
THRESHOLD = 0.2
THRESHOLD_UNIT = "% of the step"
THRESHOLD_SOURCE = "torchdoctor: a fifth of the step is worth a look"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.words import Finding

    steps = recording.steps
    if steps is None or steps.mean_s <= 0 or steps.optimizer_s / steps.mean_s < THRESHOLD:
        return []
    share = steps.optimizer_s / steps.mean_s
    location = recording.main.optimizers[0].location if recording.main.optimizers else None
    return [
        Finding(
            check="optimizer-share",
            share_of_step=share,
            evidence=[f"optimizer.step() takes {share:.0%} of each step."],
            location=location,
            severity="moderate",
        )
    ]


FIRES = [{"steps": {"optimizer_s": 0.004}}]
QUIET = [{"steps": {"optimizer_s": 0.0004}}]
