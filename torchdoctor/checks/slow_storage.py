"""The files that the loader reads lie on slow storage.

## What it means
Opening and reading the data files takes a good part of the step. They lie on a network file system,
an object store behind FUSE, a rotating disk, or a cloud disk that the page cache does not hide.

## How it is measured
In the observing launch, an audit hook notes the files that the loader and its workers open, and
their mount and device. After the launch torchdoctor reads some of these files, first with their
pages dropped from the page cache (cold), then again (warm). The time for one file times the files
opened per step is the share. If a warm read is far faster and the files fit into memory, the warm
time counts, as after the first epoch. Files that are kept open (memory maps, archives) have no
share: they need a network, FUSE or rotating disk and a loader that waits.

## Not to be confused with
A loader that waits for something else (a service, a lock): then no file is slow. Files that a C
library opens (`cv2`, `torchvision.io`, `h5py`, `lmdb`) count only if they are kept open.
"""

from torchdoctor.queries.lookup import training_loader_location
from torchdoctor.queries.slow_reads import slow_mounts
from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    MountReads,
    Recording,
    Symptom,
    Symptoms,
    fact,
    reading,
)


def _examine(recording: Recording) -> Symptoms:
    location = training_loader_location(recording)
    for mount, share in slow_mounts(recording):
        yield Symptom(share=share, evidence=_evidence(mount, share), location=location)


def _evidence(mount: MountReads, share: float | None) -> list[Evidence]:
    evidence = [
        fact(
            "read",
            files=mount.files,
            mb=mount.file_bytes / 1e6,
            mount=mount.path,
            file_system=mount.file_system,
            source=mount.source or None,
            device_file=mount.device or None,
            kind=mount.kind,
            opens=mount.opens,
        )
    ]
    if mount.cold_bytes_per_s is not None and mount.cold_file_s and mount.latency_s is not None:
        evidence.append(
            fact(
                "cold",
                mb_per_s=mount.cold_bytes_per_s / 1e6,
                files_per_s=1 / mount.cold_file_s,
                latency_s=mount.latency_s,
            )
        )
    if mount.warm_file_s is not None and mount.cold_file_s:
        hidden = mount.cold_file_s >= 3 * mount.warm_file_s
        cache = "cache-hides" if hidden else "cache-does-not-hide"
        evidence.append(fact(cache, cold_s=mount.cold_file_s, warm_s=mount.warm_file_s))
    if share is None:
        evidence.append(fact("kept-open", files=mount.held))
    return evidence


_MOUNT = {
    "path": "/mnt/data",
    "file_system": "nfs4",
    "kind": "network",
    "cold_bytes_per_s": 2e7,
    "warm_file_s": 0.0007,
    "latency_s": 0.0005,
}
_CACHED = {**_MOUNT, "warm_file_s": 1e-5}
_FILE = "a file takes {cold_s:seconds} at first and {warm_s:seconds} again."
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: as for waiting for data at all (XProf: 5 %)",
    phases=("data_wait_s", "loader_start_s", "before_forward_s"),
    sentences={
        "read": "{files} files of {mb:.1f} MB were read from {mount} ({file_system}[ from "
        "{source}][ on {device_file}]: {kind}), with {opens} opens.",
        "cold": "Read cold, it gives {mb_per_s:.2f} MB/s and {files_per_s:.0f} files/s, "
        "{latency_s:seconds} to the first bytes of a file.",
        "cache-hides": "The page cache would hide it, had memory room for the files: " + _FILE,
        "cache-does-not-hide": "The page cache does not hide it: " + _FILE,
        "kept-open": "{files} of the files are kept open or mapped meanwhile.",
    },
    examine=_examine,
    fires=[
        reading(_MOUNT),
        reading(_CACHED, memory_bytes=2**26),  # no room for all the files
        reading({**_MOUNT, "opens": 0, "held": 1}, memory_bytes=None),
    ],
    quiet=[
        reading(_CACHED),
        reading({**_MOUNT, "kind": "memory"}),
        {**reading(_MOUNT), "shares": {"data_loader": 0.01}},
    ],
)
