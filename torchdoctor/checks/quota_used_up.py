"""The CPU quota of a control group stops the program.

## What it means
A container or job may use so much CPU time of each period (0.1 s). Threads that used it up early
stand still until the next one begins, all at once: steps and batches take longer by that.

## What to do
Raise the CPU limit of the container or job, or use fewer threads and workers than CPUs that the
quota gives: they only use it up earlier.

## How it is measured
The kernel counts how long it stopped threads of the control group (throttled_usec in cpu.stat).

## Not to be confused with
Other programs, which take CPUs within what the quota allows.
"""

from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact


def _examine(recording: Recording) -> Symptoms:
    stopped_s = recording.sensors.quota_stopped_s
    if stopped_s is not None and stopped_s >= CHECK.threshold:
        cpus = recording.environment.container.cpu_quota
        yield Symptom(evidence=fact("stopped", stopped_s=stopped_s, cpus=cpus), severity="moderate")


CHECK = CheckSpec(
    branch="other",
    threshold=0.05,
    unit="seconds of each second, all threads together",
    source="torchdoctor: the least that a watched run was slower by",
    sentences={
        "stopped": "The CPU quota[ of {cpus:g} CPUs] stops the program: its threads stand still "
        "{stopped_s:.2g} s of each second, all together.",
    },
    examine=_examine,
    watch_asks="cpu-quota",
    fires=[
        {
            "sensors": {"quota_stopped_s": 0.6},
            "environment": {"container": {"cpu_quota": 1.5}},
        },
        {"sensors": {"quota_stopped_s": 0.6}},
    ],
    quiet=[{"sensors": {"quota_stopped_s": 0.01}}, {}],
)
