"""What checks and fixes ask about the storage that the training loop reads from. Pure."""

from dataclasses import dataclass
from typing import Any

from torchdoctor.queries.lookup import data_wait_share, loader_cpu_share, training_loaders
from torchdoctor.schema import SLOW_KINDS, Evidence, MountReads, Recording, fact

LEAST_WAIT = 0.05  # share of the step spent waiting for data
LEAST_SHARE = 0.05  # share of the step that reading takes
_WORTH_CACHING = 3.0  # a warm read is this much faster than a cold one: the page cache helps
_MOST_OF_MEMORY = 0.5  # free memory that cached files may fill
_ONE_FILE_A_SAMPLE = 0.8
_WAITING = 0.5  # CPU share of a fetch, below which it mostly waits
_COLD = 0.5  # share of the bytes that was cached before, below which most come from the device
HARDLY_READ = 1e5  # bytes/s: a hard disk that seeks for each 4 kB still reads four times as much


def wait_share(recording: Recording) -> float | None:
    """Return the share of the step spent waiting for data, with a loader or without."""
    share = recording.shares.data_loader
    return data_wait_share(recording) if share is None else share


def read_mounts_of(recording: Recording) -> list[MountReads]:
    """Return the mounts that the loop reads from, the most read first."""
    return recording.storage.mounts if recording.storage is not None else []


def likely_bytes(recording: Recording, mount: MountReads) -> float:
    """Return the size of the whole data set: a file for each sample if each sample opens one."""
    loaders = training_loaders(recording)
    files = float(mount.files)
    if loaders and 0 < loaders[0].samples * _ONE_FILE_A_SAMPLE <= mount.opens:
        files = max(files, float(loaders[0].dataset_length or 0))
    return mount.file_bytes / max(mount.files, 1) * files


def hidden_by_cache(recording: Recording, mount: MountReads) -> bool:
    """Return True if the page cache answers all but the first read of each file."""
    return _gains_by_cache(mount) and fits_into_memory(recording, mount)


def _gains_by_cache(mount: MountReads) -> bool:
    cold_s = mount.cold_file_s
    warm_s = mount.warm_file_s
    return cold_s is not None and warm_s is not None and cold_s >= _WORTH_CACHING * warm_s


def fits_into_memory(recording: Recording, mount: MountReads) -> bool:
    """Return True if all the files would stay in the page cache, or free memory is not known."""
    memory = recording.storage.memory_bytes if recording.storage is not None else None
    return memory is None or likely_bytes(recording, mount) < _MOST_OF_MEMORY * memory


def read_share(recording: Recording, mount: MountReads) -> float | None:
    """Return the share of the step that opening and reading takes; None: unknown, or kept open."""
    warm = hidden_by_cache(recording, mount)
    return _opened_share(recording, mount, mount.warm_file_s if warm else mount.cold_file_s)


def _opened_share(recording: Recording, mount: MountReads, file_s: float | None) -> float | None:
    """Return the share of the step that opened files cost, of so many seconds each."""
    steps = recording.steps
    wait = wait_share(recording)
    loaders = training_loaders(recording)
    if steps is None or wait is None or file_s is None or steps.mean_s <= 0:
        return None
    if not mount.opens or not steps.total_steps_seen:
        return None
    workers = max(loaders[0].num_workers, 1) if loaders else 1
    opens = mount.opens / steps.total_steps_seen / workers
    return min(opens * file_s / steps.mean_s, wait)


def slow_mounts(recording: Recording) -> list[tuple[MountReads, float | None]]:
    """Return mounts whose reads the step waits for, with their shares where they are known."""
    if (wait_share(recording) or 0.0) < LEAST_WAIT:
        return []
    mounts: list[tuple[MountReads, float | None]] = []
    for mount in read_mounts_of(recording):
        if mount.kind == "memory" or hidden_by_cache(recording, mount):
            continue
        share = read_share(recording, mount)
        if share is not None and share >= LEAST_SHARE:
            mounts.append((mount, share))
        elif mount.held and mount.kind in SLOW_KINDS and _waits(recording):
            mounts.append((mount, None))
    return mounts


def _waits(recording: Recording) -> bool:
    busy = loader_cpu_share(recording)
    return busy is not None and busy < _WAITING


@dataclass(frozen=True, kw_only=True)
class ColdMount:
    """Files that were mostly not cached when training first read of them."""

    mount: MountReads
    share: float | None  # of the step, that the device adds; None: not known (kept open)
    fits: bool  # into free memory, so that the second epoch finds all of them there


def cold_mounts(recording: Recording) -> list[ColdMount]:
    """Return the mounts whose files came from the device while the step waited for them."""
    if recording.steps is None or (wait_share(recording) or 0.0) < LEAST_WAIT:
        return []
    mounts = []
    reads = (recording.sensors.read_bytes_per_s or 0.0) >= HARDLY_READ
    for mount in read_mounts_of(recording):
        cached = mount.cached_at_first
        if mount.kind == "memory" or cached is None or cached >= _COLD:
            continue
        if mount.cold_file_s is None or mount.warm_file_s is None or not _gains_by_cache(mount):
            continue
        saved_s = (mount.cold_file_s - mount.warm_file_s) * (1.0 - cached)
        share = _opened_share(recording, mount, saved_s)
        fits = fits_into_memory(recording, mount)
        if share is not None and share >= LEAST_SHARE:
            mounts.append(ColdMount(mount=mount, share=share, fits=fits))
        # The bytes of a network go by no disk.
        elif mount.held and _waits(recording) and (mount.kind in SLOW_KINDS or reads):
            mounts.append(ColdMount(mount=mount, share=None, fits=fits))
    return mounts


def stays_cold(recording: Recording) -> bool:
    """Return True if the loop waits for uncached files that memory has no room for."""
    return any(not cold.fits for cold in cold_mounts(recording))


def why_not_slow(recording: Recording) -> Evidence:
    """Return why no mount of the program's counts as slow."""
    mounts = read_mounts_of(recording)
    wait = wait_share(recording)
    if not mounts:
        readers = recording.storage.c_readers if recording.storage is not None else []
        return fact("no-file-read-but-in-c", readers=readers) if readers else fact("no-file-read")
    if wait is not None and wait < LEAST_WAIT:
        return fact("hardly-waits", share=wait)
    first = mounts[0]
    share = read_share(recording, mounts[0])
    mount: dict[str, Any] = {
        "path": first.path,
        "file_system": first.file_system,
        "kind": first.kind,
    }
    if first.kind == "memory":
        return fact("files-in-memory", **mount)
    if hidden_by_cache(recording, first):
        return fact("hidden-by-cache", **mount)
    if share is None:
        return fact("reading-unmeasured", **mount)
    return fact("reading-hardly-matters", share=share, **mount)
