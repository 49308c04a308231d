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

from torchdoctor.facts.lookup import training_loader_location
from torchdoctor.facts.slow_reads import slow_mounts
from torchdoctor.words import CheckSpec, MountReads, Recording, Symptom, Symptoms, reading


def _examine(recording: Recording) -> Symptoms:
    location = training_loader_location(recording)
    for mount, share in slow_mounts(recording):
        yield Symptom(share=share, evidence=_evidence(mount, share), location=location)


def _evidence(mount: MountReads, share: float | None) -> list[str]:
    device = f" on {mount.device}" if mount.device else ""
    evidence = [
        f"{mount.files} files of {mount.file_bytes / 1e6:.1f} MB were read from {mount.path} "
        f"({mount.file_system} from {mount.source or '?'}{device}: {mount.kind}), "
        f"with {mount.opens} opens."
    ]
    if mount.cold_bytes_per_s is not None and mount.cold_file_s and mount.latency_s is not None:
        evidence.append(
            f"Read cold, it gives {mount.cold_bytes_per_s / 1e6:.2f} MB/s and "
            f"{1 / mount.cold_file_s:.0f} files/s, {mount.latency_s * 1e3:.2f} ms to the first "
            "bytes of a file."
        )
    if mount.warm_file_s is not None and mount.cold_file_s:
        hidden = mount.cold_file_s >= 3 * mount.warm_file_s
        helps = "would hide it, had memory room for the files" if hidden else "does not hide it"
        evidence.append(
            f"The page cache {helps}: a file takes {mount.cold_file_s * 1e3:.2f} ms at first and "
            f"{mount.warm_file_s * 1e3:.2f} ms again."
        )
    if share is None:
        evidence.append(f"{mount.held} of the files are kept open or mapped while training.")
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
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: as for waiting for data at all (XProf: 5 %)",
    phases=("data_wait_s", "loader_start_s", "before_forward_s"),
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
