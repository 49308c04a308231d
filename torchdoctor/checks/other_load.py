"""Other programs use this machine.

## What it means
Other programs take CPU time from the training: it is slower than it could be, and measurements
are noisier.

## How it is measured
CPU time of the whole machine less the program's own (psutil).

## Not to be confused with
The program's own loader workers.
"""

from torchdoctor.facts.hardware import MUCH_LOAD, load_words
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms


def _examine(recording: Recording) -> Symptoms:
    load = load_words(recording.sensors.other_load_cpus, recording.environment.cpus)
    if load is not None:
        yield Symptom(evidence=f"Other programs keep {load} busy.", severity="advice")


CHECK = CheckSpec(
    branch="other",
    threshold=MUCH_LOAD,
    unit="% of the usable CPUs, kept busy by other programs",
    source="torchdoctor: a quarter of the machine is missing then",
    examine=_examine,
    fires=[{"sensors": {"other_load_cpus": 1.5}, "environment": {"usable_cpus": 2.0}}],
    quiet=[{"sensors": {"other_load_cpus": 0.05}, "environment": {"usable_cpus": 2.0}}],
)
