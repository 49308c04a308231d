"""Somebody else uses this machine.

What it means
-------------
Other programs take CPU time from the training: it is slower than it could be, and measurements
are noisier.

How it is measured
------------------
CPU time of the whole machine less the program's own (psutil).

Not to be confused with
-----------------------
The program's own loader workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "other"
THRESHOLD = 0.25
THRESHOLD_UNIT = "% of the usable CPUs, kept busy by other programs"
THRESHOLD_SOURCE = "torchdoctor: a quarter of the machine is missing then"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.words import Finding

    busy, usable = recording.sensors.other_load_cpus, recording.environment.cpus
    if busy is None or busy < THRESHOLD * max(usable, 1.0):
        return []
    return [
        Finding(
            check="other-load",
            share_of_step=None,
            evidence=[f"Other programs keep {busy:.1f} of {usable:g} usable CPUs busy."],
            location=None,
            severity="advice",
        )
    ]


FIRES = [{"sensors": {"other_load_cpus": 1.5}, "environment": {"usable_cpus": 2.0}}]
QUIET = [{"sensors": {"other_load_cpus": 0.05}, "environment": {"usable_cpus": 2.0}}]
