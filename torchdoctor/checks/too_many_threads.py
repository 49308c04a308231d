"""More compute threads than usable CPUs.

What it means
-------------
torch's threads spin while they wait for each other. With more threads than CPUs, some wait for
one that is not running.

How it is measured
------------------
torch.get_num_threads() against the CPUs that the process may use (affinity and container
quota).

Not to be confused with
-----------------------
Loader workers, which are processes and use one thread each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.words import Finding, Recording

UNDER = "cpu"
THRESHOLD = 1.0
THRESHOLD_UNIT = "thread for each usable CPU; a finding above it"
THRESHOLD_SOURCE = "torchdoctor: more threads than CPUs wait for each other"


def look(recording: Recording) -> list[Finding]:
    """A finding where the threshold is passed."""
    from torchdoctor.words import Finding

    flags, usable = recording.main.flags, recording.environment.cpus
    if flags.num_threads is None or recording.steps is None or recording.has_gpu:
        return []
    trainers = recording.steps.trainers
    threads = flags.num_threads * trainers
    if threads <= THRESHOLD * max(usable, 1.0):
        return []
    each = f" in each of {trainers} processes" if trainers > 1 else ""
    return [
        Finding(
            check="too-many-threads",
            share_of_step=None,
            evidence=[f"{flags.num_threads} threads{each} share {usable:g} usable CPUs."],
            location=flags.num_threads_location,
            severity="high" if threads >= 2 * max(usable, 1.0) else "moderate",
        )
    ]


FIRES = [
    {"environment": {"usable_cpus": 2.0}, "processes": [{"pid": 1, "flags": {"num_threads": 16}}]}
]
QUIET = [
    {"environment": {"usable_cpus": 2.0}, "processes": [{"pid": 1, "flags": {"num_threads": 2}}]}
]
