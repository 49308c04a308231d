"""Other programs use this machine.

## What it means
Other programs take CPU time from the training, which is slower, and measurements are noisier.

## How it is measured
CPU time of the whole machine less the program's own (psutil); processes on its GPUs (NVML).

## Not to be confused with
The program's own loader workers.
"""

from torchdoctor.queries.hardware import MUCH_LOAD, much_load
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, trace


def _examine(recording: Recording) -> Symptoms:
    usable = recording.environment.cpus
    busy = much_load(recording.sensors.other_load_cpus, usable)
    if busy is not None:
        yield Symptom(evidence=fact("cpus", busy=busy, usable=usable), severity="advice")
    if recording.has_gpu and (strangers := recording.sensors.gpu_sharing_processes):
        yield Symptom(evidence=fact("device", processes=strangers), severity="advice")


CHECK = CheckSpec(
    branch="other",
    threshold=MUCH_LOAD,
    unit="% of the usable CPUs, kept busy by other programs",
    source="torchdoctor: a quarter of the machine is missing then",
    sentences={
        "cpus": "Other programs keep {busy:.1f} of {usable:g} usable CPUs busy.",
        "device": "{processes:counted other process runs, other processes run} on the {device} of "
        "this program.",
    },
    examine=_examine,
    watch_asks="other-programs",
    fires=[
        {"sensors": {"other_load_cpus": 1.5}, "environment": {"usable_cpus": 2.0}},
        {**trace(has_device=True), "sensors": {"gpu_sharing_processes": 1}},
    ],
    quiet=[{"sensors": {"other_load_cpus": 0.05}, "environment": {"usable_cpus": 2.0}}],
)
