"""What checks and fixes ask about the storage that the training loop reads from. Pure."""

from __future__ import annotations

from torchdoctor.records.lookup import data_wait_share, loader_cpu_share, training_loaders
from torchdoctor.records.recording import Recording
from torchdoctor.records.storage import SLOW_KINDS, MountReads

LEAST_WAIT = 0.05  # share of the step spent waiting for data
LEAST_SHARE = 0.05  # share of the step that reading takes
_WORTH_CACHING = 3.0  # a warm read is this much faster than a cold one: the page cache helps
_MOST_OF_MEMORY = 0.5  # free memory that cached files may fill
_ONE_FILE_A_SAMPLE = 0.8
_WAITING = 0.5  # CPU share of a fetch, below which it mostly waits


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
    if mount.cold_file_s < _WORTH_CACHING * mount.warm_file_s:
        return False
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
    if file_s is None or not steps.total_steps_seen:
        return None
    loaders = training_loaders(recording)
    side_by_side = max(loaders[0].num_workers, 1) if loaders else 1
    per_step_s = mount.opens / steps.total_steps_seen * file_s / side_by_side
    return min(per_step_s / steps.mean_s, wait)


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
