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

from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.25


def _examine(recording: Recording) -> Iterator[Symptom]:
    busy, usable = recording.sensors.other_load_cpus, recording.environment.cpus
    if busy is None or busy < THRESHOLD * max(usable, 1.0):
        return
    yield Symptom(
        evidence=[f"Other programs keep {busy:.1f} of {usable:g} usable CPUs busy."],
        severity="advice",
    )


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="other",
    threshold=THRESHOLD,
    unit="% of the usable CPUs, kept busy by other programs",
    source="torchdoctor: a quarter of the machine is missing then",
    examine=_examine,
    fires=[{"sensors": {"other_load_cpus": 1.5}, "environment": {"usable_cpus": 2.0}}],
    quiet=[{"sensors": {"other_load_cpus": 0.05}, "environment": {"usable_cpus": 2.0}}],
)
