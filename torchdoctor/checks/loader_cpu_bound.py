"""The data loader's processors are the limit.

What it means
-------------
Preparing a batch (decoding, augmenting, collating) needs more CPU time than the step leaves.

How it is measured
------------------
With no workers: CPU time over wall time of the fetches (at least half is computing). With
workers: the CPUs that the program's child processes keep busy, against their number. Both with the
time in the queue for a CPU that others held (`/proc/PID/schedstat`). Where batches lie ready in the
workers' queue for most of the wait, the workers are not the limit: see batch-transfer.

Not to be confused with
-----------------------
A loader that waits for a disk or a network: there more workers than cores help.
"""

from collections.abc import Iterator

from torchdoctor.facts.fetch_time import queued_words
from torchdoctor.facts.lookup import (
    data_wait_share,
    loader_cpu_share,
    training_loaders,
    workers_keep_up,
)
from torchdoctor.facts.preparing_line import preparing_line
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.5
WAIT = 0.05
_CHEAPER_FIRST = (
    "Make this line cheaper first (whole-array NumPy operations, a decoder in C): workers only "
    "hide it."
)


def _examine(recording: Recording) -> Iterator[Symptom]:
    share, busy = data_wait_share(recording), loader_cpu_share(recording)
    loaders = training_loaders(recording)
    if not loaders or share is None or share < WAIT or busy is None or busy < THRESHOLD:
        return
    if workers_keep_up(recording):
        return
    loader = loaders[0]
    evidence = [
        f"Fetching a batch is {busy:.0%} CPU time{queued_words(recording)}, with "
        f"num_workers={loader.num_workers} and {recording.environment.cpus:g} usable CPUs.",
    ]
    if (line := preparing_line(recording)) is not None:
        evidence += [line, _CHEAPER_FIRST]
    if loader.sample_time_s is not None:
        evidence.append(
            f"One sample took {loader.sample_time_s * 1e3:.2f} ms to prepare, of the first "
            "batches of the observed launch."
        )
    yield Symptom(
        share=share,
        evidence=evidence,
        location=loader.location,
    )


_LOADER = {"ident": 0, "num_workers": 0, "batches": 50, "sample_cpu_share": 0.97}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="data_loader",
    threshold=THRESHOLD,
    unit="% of the time of fetching is CPU time",
    source="torchdoctor: most of the fetch is CPU time; SageMaker asks CPU > 90 %",
    phases=("data_wait_s", "loader_start_s"),
    examine=_examine,
    fires=[
        {
            "steps": {"data_wait_s": 0.008, "forward_s": 0.002},
            "processes": [{"pid": 1, "loaders": [_LOADER]}],
        }
    ],
    quiet=[
        {
            "steps": {"data_wait_s": 0.008, "forward_s": 0.002},
            "processes": [{"pid": 1, "loaders": [{**_LOADER, "sample_cpu_share": 0.1}]}],
        },
        {"steps": {"data_wait_s": 0.0001}, "processes": [{"pid": 1, "loaders": [_LOADER]}]},
    ],
)
