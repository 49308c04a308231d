"""What fetching a batch spends its time with, as far as other programs let it be told. Pure."""

from __future__ import annotations

from torchdoctor.facts.lookup import (
    data_wait_share,
    loader_cpu_share,
    training_loaders,
    workers_keep_up,
)
from torchdoctor.facts.other_load import much_load
from torchdoctor.words.program import LoaderFacts
from torchdoctor.words.recording import Recording

MOSTLY_WAITING = 0.5  # CPU time per wall time of a fetch, below: it waits, it does not compute
_LEAST_WAIT = 0.05  # share of the step
_IOWAIT = 0.2
_HARDLY = 0.25  # of a fetch with its queue, below: threads of its own would leave it more than that
_MOSTLY_FORCED = 0.5  # of the context switches


def waiting_loader(recording: Recording) -> LoaderFacts | None:
    """Return the training loader if the step waits for it or its workers; None otherwise."""
    loaders, wait = training_loaders(recording), data_wait_share(recording)
    if not loaders or wait is None or wait < _LEAST_WAIT or workers_keep_up(recording):
        return None
    return loaders[0]


def untold_wait(recording: Recording) -> str | None:
    """Why a fetch of little CPU time need not wait for anything but a CPU; a sentence, or None."""
    share, sensors = loader_cpu_share(recording), recording.sensors
    cpus = recording.environment.cpus
    others = much_load(sensors.other_load_cpus, cpus)
    if share is None or share >= MOSTLY_WAITING or others is None:
        return None
    if (sensors.iowait_share or 0.0) > _IOWAIT:
        return None
    # What stood in the queue is in the share. Threads of the fetch's own may have stood there too.
    hardly_computes = share < _HARDLY or not _mostly_forced(recording)
    if _queue_is_known(recording) and hardly_computes:
        return None
    workers = training_loaders(recording)[0].num_workers
    could = min(workers, int(max(cpus, 1.0)))
    of = f"{could} CPUs" if could > 1 else "a CPU"
    return (
        f"The fetch got only {share:.0%} of {of} while other programs kept {others:.1f} of "
        f"{cpus:g} busy: whether it computes or waits cannot be told now."
    )


def queued_words(recording: Recording) -> str:
    """What of the CPU time of a fetch was the queue for a CPU, to follow it; mostly empty."""
    loaders, sensors = training_loaders(recording), recording.sensors
    queued = loaders[0].sample_queue_share if loaders else None
    if loaders and loaders[0].num_workers:
        could = min(loaders[0].num_workers, max(recording.environment.cpus, 1.0))
        queued = min((sensors.workers_queued_cpus or 0.0) / could, 1.0)
    if queued is None or queued < _WORTH_SAYING:
        return ""
    return f" (of which {queued:.0%} waiting for a CPU that others held)"


def _queue_is_known(recording: Recording) -> bool:
    loader = training_loaders(recording)[0]
    if loader.num_workers:
        return recording.sensors.workers_queued_cpus is not None
    return loader.sample_queue_share is not None


def _mostly_forced(recording: Recording) -> bool:
    every = recording.sensors.context_switches_per_s
    forced = recording.sensors.involuntary_switches_per_s
    return bool(every) and forced is not None and forced >= _MOSTLY_FORCED * (every or 0.0)


_WORTH_SAYING = 0.1
