"""What checks and fixes ask about the storage that the training loop reads from. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.facts.lookup import data_wait_share, loader_cpu_share, training_loaders
from torchdoctor.words.environment import SLOW_KINDS, MountReads
from torchdoctor.words.recording import Recording

LEAST_WAIT = 0.05  # share of the step spent waiting for data
LEAST_SHARE = 0.05  # share of the step that reading takes
_WORTH_CACHING = 3.0  # a warm read is this much faster than a cold one: the page cache helps
_MOST_OF_MEMORY = 0.5  # free memory that cached files may fill
_ONE_FILE_A_SAMPLE = 0.8
_WAITING = 0.5  # CPU share of a fetch, below which it mostly waits
_COLD = 0.5  # share of the bytes that was cached before, below which most come from the device
HARDLY_READ = 1e5  # bytes/s: a hard disk that seeks for each 4 kB still reads four times as much


def wait_share(recording: Recording) -> float | None:
    """Share of the step spent waiting for data, with a loader or without."""
    share = recording.shares.data_loader
    return data_wait_share(recording) if share is None else share


def read_mounts_of(recording: Recording) -> list[MountReads]:
    """Mounts that the loop reads from, most read first; [] where none was seen."""
    return recording.storage.mounts if recording.storage is not None else []


def likely_bytes(recording: Recording, mount: MountReads) -> float:
    """All files of the data set: as many as it has samples, where each sample opens one."""
    loaders = training_loaders(recording)
    files = float(mount.files)
    if loaders and 0 < loaders[0].samples * _ONE_FILE_A_SAMPLE <= mount.opens:
        files = max(files, float(loaders[0].dataset_length or 0))
    return mount.file_bytes / max(mount.files, 1) * files


def hidden_by_cache(recording: Recording, mount: MountReads) -> bool | None:
    """Whether the page cache answers all but the first read of each file; None: not measured."""
    if mount.cold_file_s is None or mount.warm_file_s is None:
        return None
    return _gains_by_cache(mount) and fits_into_memory(recording, mount)


def _gains_by_cache(mount: MountReads) -> bool:
    cold_s, warm_s = mount.cold_file_s, mount.warm_file_s
    return cold_s is not None and warm_s is not None and cold_s >= _WORTH_CACHING * warm_s


def fits_into_memory(recording: Recording, mount: MountReads) -> bool:
    """Whether all the files would stay in the page cache; True where free memory is not known."""
    storage = recording.storage
    memory = storage.memory_bytes if storage is not None else None
    return memory is None or likely_bytes(recording, mount) < _MOST_OF_MEMORY * memory


def read_share(recording: Recording, mount: MountReads) -> float | None:
    """Share of the step that opening and reading the files takes, at most the wait for data.

    From the files opened per step and the time for one; None where that is not known, as for files
    that are kept open.
    """
    steps, wait = recording.steps, wait_share(recording)
    if steps is None or wait is None or steps.mean_s <= 0 or not mount.opens:
        return None
    file_s = mount.warm_file_s if hidden_by_cache(recording, mount) else mount.cold_file_s
    opens = _opens_at_once(recording, mount)
    return None if file_s is None or opens is None else min(opens * file_s / steps.mean_s, wait)


def _opens_at_once(recording: Recording, mount: MountReads) -> float | None:
    """Files that one worker opens per step; None: not known."""
    steps, loaders = recording.steps, training_loaders(recording)
    if steps is None or not steps.total_steps_seen:
        return None
    side_by_side = max(loaders[0].num_workers, 1) if loaders else 1
    return mount.opens / steps.total_steps_seen / side_by_side


def slow_mounts(recording: Recording) -> list[tuple[MountReads, float | None]]:
    """Mounts whose reads the step waits for, each with its share of the step where it is known."""
    wait = wait_share(recording)
    if wait is None or wait < LEAST_WAIT:
        return []
    busy = loader_cpu_share(recording)
    found: list[tuple[MountReads, float | None]] = []
    for mount in read_mounts_of(recording):
        if mount.kind == "memory" or hidden_by_cache(recording, mount):
            continue
        share = read_share(recording, mount)
        if share is not None and share >= LEAST_SHARE:
            found.append((mount, share))
        elif mount.held and mount.kind in SLOW_KINDS and busy is not None and busy < _WAITING:
            found.append((mount, None))
    return found


@dataclass(frozen=True, kw_only=True)
class ColdMount:
    """Files that were mostly not cached when training first read of them.

    share: of the step, that reading them from the device adds; None: not known (kept open).
    fits: all of them fit into free memory, so that the second epoch finds them there.
    """

    mount: MountReads
    share: float | None
    fits: bool


def cold_mounts(recording: Recording) -> list[ColdMount]:
    """Mounts whose files came from the device while the step waited for them."""
    steps, wait = recording.steps, wait_share(recording)
    if steps is None or wait is None or wait < LEAST_WAIT or steps.mean_s <= 0:
        return []
    found = []
    for mount in read_mounts_of(recording):
        cached, opens = mount.cached_at_first, _opens_at_once(recording, mount)
        if mount.kind == "memory" or cached is None or cached >= _COLD:
            continue
        if not _gains_by_cache(mount):
            continue
        share = None
        if opens:
            saved_s = (mount.cold_file_s or 0.0) - (mount.warm_file_s or 0.0)
            share = min(opens * saved_s * (1.0 - cached) / steps.mean_s, wait)
        fits = fits_into_memory(recording, mount)
        if share is not None and share >= LEAST_SHARE:
            found.append(ColdMount(mount=mount, share=share, fits=fits))
        elif mount.held and _comes_from_a_device(recording, mount):
            found.append(ColdMount(mount=mount, share=None, fits=fits))
    return found


def stays_cold(recording: Recording) -> bool:
    """Whether the loop waits for files that were not cached and that memory has no room for."""
    return any(not one.fits for one in cold_mounts(recording))


def _comes_from_a_device(recording: Recording, mount: MountReads) -> bool:
    """Whether the loader waits, and bytes come in; those of a network go by no disk."""
    busy, reads = loader_cpu_share(recording), recording.sensors.read_bytes_per_s
    by_disk = reads is not None and reads >= HARDLY_READ
    return busy is not None and busy < _WAITING and (by_disk or mount.kind in SLOW_KINDS)


def why_not_slow(recording: Recording) -> str:
    """One sentence: why no mount of the program's counts as slow."""
    mounts = read_mounts_of(recording)
    if not mounts:
        return _unseen(recording)
    wait = wait_share(recording)
    if wait is not None and wait < LEAST_WAIT:
        return f"The step waits for data only {100 * wait:.1f} % of its time."
    first = mounts[0]
    where = f"{first.path} ({first.file_system}, {first.kind})"
    if first.kind == "memory":
        return f"The files already lie in memory: {where}."
    if hidden_by_cache(recording, first):
        times = (
            f", {first.warm_file_s * 1e3:.2f} ms instead of {first.cold_file_s * 1e3:.2f} ms a file"
            if first.warm_file_s is not None and first.cold_file_s is not None
            else ""
        )
        return f"The page cache hides {where}{times}: read once, the files fit into memory."
    share = read_share(recording, first)
    if share is None:
        return f"How long reading from {where} takes could not be measured."
    return f"Reading from {where} takes only {100 * share:.1f} % of the step."


def _unseen(recording: Recording) -> str:
    storage = recording.storage
    if storage is not None and storage.c_readers:
        return (
            f"No file was seen being read in the training loop: {', '.join(storage.c_readers)} may "
            "open files in C, where Python's open cannot be watched or redirected."
        )
    return "No file was seen being read in the training loop."
