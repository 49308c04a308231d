"""More compute threads than usable CPUs.

## What it means
torch's threads spin while they wait for each other, with too few CPUs for one that cannot run.

## How it is measured
torch.get_num_threads() is compared with the CPUs that affinity, quota and other programs leave.

## Not to be confused with
Loader workers, which are processes and use one thread each.
"""

from torchdoctor.queries.hardware import much_load
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    threads = recording.main.flags.num_threads or 1
    usable = recording.environment.cpus
    load = much_load(recording.sensors.other_load_cpus, usable)
    free = usable if load is None else round(usable - load)
    if threads == 1 or recording.steps is None or recording.has_gpu:
        return
    trainers = recording.steps.trainers
    threads_per_cpu = threads * trainers / max(free, 1.0)
    if threads_per_cpu > CHECK.threshold:
        processes = trainers if trainers > 1 else None
        yield Symptom(
            evidence=fact(
                "threads", threads=threads, processes=processes, usable=usable, busy=load
            ),
            location=recording.main.flags.num_threads_location,
            severity="high" if threads_per_cpu >= 2 else "moderate",
        )


_CPUS = {"environment": {"usable_cpus": 2.0}}
CHECK = CheckSpec(
    branch="cpu",
    threshold=1.0,
    unit="thread for each usable CPU; a finding above it",
    source="torchdoctor: more threads than CPUs wait for each other",
    sentences={
        "threads": "{threads} threads[ in each of {processes} processes] share {usable:g} usable "
        "CPUs[, of which other programs keep {busy:.1f} busy].",
    },
    examine=_examine,
    fires=[
        {**_CPUS, **process(flags={"num_threads": 16})},
        {**_CPUS, **process(flags={"num_threads": 2}), "sensors": {"other_load_cpus": 0.95}},
    ],
    quiet=[
        {**_CPUS, **process(flags={"num_threads": 2}), "sensors": {"other_load_cpus": 0.3}},
        {**_CPUS, **process(flags={"num_threads": 1}), "steps": {"trainers": 4}},
    ],
)
