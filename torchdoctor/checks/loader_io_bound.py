"""The data loader waits for storage or a network.

What it means
-------------
Fetching a batch takes long, but hardly any CPU: the time goes into waiting for a disk, a
network file system, an object store or a service.

How it is measured
------------------
With no workers: CPU time over wall time of the fetches is below half. With workers: they keep
less than half a CPU each busy while the step still waits for them, or the machine shows
iowait.

Not to be confused with
-----------------------
A loader that computes: there the number of cores limits how many workers help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchdoctor.records import Finding, Recording

UNDER = "data_loader"
THRESHOLD = 0.5
THRESHOLD_SOURCE = "torchdoctor: most of the fetch is no CPU time; SageMaker asks iowait > 50 %"
WAIT = 0.05


def look(recording: Recording) -> list[Finding]:
    """A finding where the step waits for a loader that itself waits."""
    from torchdoctor.records import Finding
    from torchdoctor.records.lookup import data_wait_share, loader_cpu_share, training_loaders

    share, busy = data_wait_share(recording), loader_cpu_share(recording)
    loaders = training_loaders(recording)
    if not loaders or share is None or share < WAIT or busy is None or busy >= THRESHOLD:
        return []
    loader = loaders[0]
    evidence = [
        f"Fetching a batch is only {busy:.0%} CPU time: the loader waits for storage, a network "
        "or a lock.",
    ]
    if loader.sample_time_s is not None:
        evidence.append(
            f"One sample took {loader.sample_time_s * 1e3:.2f} ms, of the first batches of the "
            "observed launch."
        )
    sensors = recording.sensors
    if sensors.read_bytes_per_s is not None:
        evidence.append(f"The program reads {sensors.read_bytes_per_s / 1e6:.1f} MB/s from disk.")
    return [
        Finding(
            check="loader-io-bound",
            share_of_step=share,
            evidence=evidence,
            location=loader.location,
            severity="high" if share >= 0.2 else "moderate",
        )
    ]


_LOADER = {"ident": 0, "num_workers": 0, "batches": 50, "sample_cpu_share": 0.08}
FIRES = [
    {
        "steps": {"data_wait_s": 0.008, "forward_s": 0.002},
        "processes": [{"pid": 1, "loaders": [_LOADER]}],
    }
]
QUIET = [
    {
        "steps": {"data_wait_s": 0.008, "forward_s": 0.002},
        "processes": [{"pid": 1, "loaders": [{**_LOADER, "sample_cpu_share": 0.95}]}],
    }
]
