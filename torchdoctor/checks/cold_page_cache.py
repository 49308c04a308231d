"""The loader waits for files that are not in the page cache yet.

## What it means
Linux keeps files that were read once in free memory, the page cache, and reads them from there the
next time. If the files fit into free memory, only the first epoch is slow, and faster storage gains
in that epoch alone. If they do not fit, every epoch is like the first.

## What to do
If the files fit into free memory: nothing, or read them once before training
(`cat FILES > /dev/null`). If they do not fit: make them smaller (compressed, of lower resolution,
packed into few large files), take a faster local disk or more memory, and hide the rest behind more
workers and batches ahead (num_workers, prefetch_factor).

## How it is measured
In the observing launch, before training first opens a file, torchdoctor asks the kernel (`mincore`)
which of its pages are cached, for a random quarter of the files. After the launch, it reads some of
the files cold and from the cache. The difference, times the uncached part and the files opened per
step, is the share of the step. Files that are kept open have no share: they need a loader that
waits while bytes come from a device.

The observing launch warms the files that it reads, so the fixes are compared with warm files. If
the data do not fit into memory, the files are dropped from the cache before each launch.

## Not to be confused with
Storage that is slow at every read, such as a network file system without a cache (slow-storage). A
loader whose files are cached and that waits all the same computes, or waits for something else.
"""

from torchdoctor.queries.lookup import training_loader_location
from torchdoctor.queries.slow_reads import ColdMount, cold_mounts, likely_bytes
from torchdoctor.schema import CheckSpec, Evidence, Recording, Symptom, Symptoms, fact, reading


def _examine(recording: Recording) -> Symptoms:
    location = training_loader_location(recording)
    for cold in cold_mounts(recording):
        yield Symptom(
            share=cold.share,
            evidence=_evidence(recording, cold),
            location=location,
            severity="moderate" if cold.fits else None,
        )


def _evidence(recording: Recording, cold: ColdMount) -> list[Evidence]:
    mount = cold.mount
    cached = mount.cached_at_first or 0.0
    evidence = [
        fact("cold", files=mount.looked_at, mount=mount.path, kind=mount.kind, cached=cached)
    ]
    if mount.cold_file_s is not None and mount.warm_file_s is not None:
        evidence.append(fact("file", cold_s=mount.cold_file_s, warm_s=mount.warm_file_s))
    if (reads := recording.sensors.read_bytes_per_s) is not None:
        evidence.append(fact("reads", mb_per_s=reads / 1e6))
    memory = recording.storage.memory_bytes if recording.storage is not None else None
    fate = fact(
        "fits" if cold.fits else "too-large",
        files_gb=likely_bytes(recording, mount) / 1e9,
        memory_gb=None if memory is None else memory / 1e9,
    )
    return [*evidence, fate]


_MOUNT = {
    "path": "/data",
    "file_system": "ext4",
    "kind": "virtual disk",
    "warm_file_s": 0.0001,
    "looked_at": 128,
    "cached_at_first": 0.02,
}
_KEPT_OPEN = {**_MOUNT, "opens": 0, "held": 1}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: as for waiting for data at all (XProf: 5 %)",
    sentences={
        "cold": "Of {files} files on {mount} ({kind}), {cached:.0%} of the bytes were in the page "
        "cache when the program first read of them: the rest came from the device.",
        "file": "A file takes {cold_s:seconds} from there and {warm_s:seconds} from the page "
        "cache.",
        "reads": "The program read {mb_per_s:.1f} MB/s from disks.",
        "fits": "All files together have about {files_gb:.3g} GB, which fit into the free memory[ "
        "of {memory_gb:.3g} GB]: the second epoch is faster by itself, and faster storage gains "
        "in the first epoch only.",
        "too-large": "All files together have about {files_gb:.3g} GB, too much for the free "
        "memory[ of {memory_gb:.3g} GB]: they stay cold in every epoch. Smaller files "
        "(compressed, of lower resolution), more memory or a faster disk change that; more "
        "workers and batches ahead hide it.",
    },
    examine=_examine,
    fires=[
        reading(_MOUNT),
        reading(_MOUNT, memory_bytes=2**26),  # larger than memory: cold in every epoch
        reading(_KEPT_OPEN),
    ],
    quiet=[
        reading({**_MOUNT, "cached_at_first": 0.98}),
        # The cache would not help: a network file system without one, or a disk as fast as memory.
        reading({**_MOUNT, "warm_file_s": 0.0007}),
        reading({**_MOUNT, "cold_file_s": 3e-5, "warm_file_s": 1e-6}),  # hardly any of the step
        {**reading(_KEPT_OPEN), "sensors": {"read_bytes_per_s": 100.0}},
        reading({**_MOUNT, "kind": "memory"}),
    ],
)
