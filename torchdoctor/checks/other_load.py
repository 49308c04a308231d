"""Other programs use this machine.

## What it means
Other programs take CPU time from the training, which is slower, and measurements are noisier.

## How it is measured
CPU time of the whole machine less the program's own (psutil); processes on its GPUs (NVML).

## Not to be confused with
The program's own loader workers.
"""

from torchdoctor.facts.hardware import MUCH_LOAD, load_words
from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, trace
from torchdoctor.words.figures import counted


def _examine(recording: Recording) -> Symptoms:
    load = load_words(recording.sensors.other_load_cpus, recording.environment.cpus)
    if load is not None:
        yield Symptom(evidence=f"Other programs keep {load} busy.", severity="advice")
    if recording.has_gpu and (strangers := recording.sensors.gpu_sharing_processes):
        running = counted(strangers, "other process runs", "other processes run")
        yield Symptom(evidence=f"{running} on the GPU of this training.", severity="advice")


CHECK = CheckSpec(
    branch="other",
    threshold=MUCH_LOAD,
    unit="% of the usable CPUs, kept busy by other programs",
    source="torchdoctor: a quarter of the machine is missing then",
    examine=_examine,
    fires=[
        {"sensors": {"other_load_cpus": 1.5}, "environment": {"usable_cpus": 2.0}},
        {**trace(has_device=True), "sensors": {"gpu_sharing_processes": 1}},
    ],
    quiet=[{"sensors": {"other_load_cpus": 0.05}, "environment": {"usable_cpus": 2.0}}],
)
