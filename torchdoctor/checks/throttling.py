"""The GPU runs below its clock.

What it means
-------------
Heat or the power limit makes the GPU lower its clock.

How it is measured
------------------
Throttle reasons that NVML reported while the program ran.

Not to be confused with
-----------------------
An idle GPU, which lowers its clock by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.records import Finding, Recording

UNDER = "other"
THRESHOLD = 0
THRESHOLD_SOURCE = "NVML clocks throttle reasons"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.records import Finding

    reasons = recording.sensors.gpu_throttle
    if not reasons:
        return []
    return [
        Finding(
            check="throttling",
            share_of_step=None,
            evidence=["NVML reports throttling: " + ", ".join(reasons) + "."],
            location=None,
            severity="moderate",
        )
    ]


FIRES = [{"sensors": {"gpu_throttle": ["thermal 40 %"]}}]
QUIET: list[dict[str, object]] = [{"sensors": {"gpu_throttle": []}}, {}]
