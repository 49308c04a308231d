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

from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 1.0


def _examine(recording: Recording) -> Iterator[Symptom]:
    flags, usable = recording.main.flags, recording.environment.cpus
    if flags.num_threads is None or recording.steps is None or recording.has_gpu:
        return
    trainers = recording.steps.trainers
    threads = flags.num_threads * trainers
    if threads <= THRESHOLD * max(usable, 1.0):
        return
    each = f" in each of {trainers} processes" if trainers > 1 else ""
    yield Symptom(
        evidence=[f"{flags.num_threads} threads{each} share {usable:g} usable CPUs."],
        location=flags.num_threads_location,
        severity="high" if threads >= 2 * max(usable, 1.0) else "moderate",
    )


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="thread for each usable CPU; a finding above it",
    source="torchdoctor: more threads than CPUs wait for each other",
    examine=_examine,
    fires=[
        {
            "environment": {"usable_cpus": 2.0},
            "processes": [{"pid": 1, "flags": {"num_threads": 16}}],
        }
    ],
    quiet=[
        {
            "environment": {"usable_cpus": 2.0},
            "processes": [{"pid": 1, "flags": {"num_threads": 2}}],
        }
    ],
)
