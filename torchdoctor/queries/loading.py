"""How a loader's workers spend their time, and what preparing samples beside the training gives."""

import math

from torchdoctor.queries.epoch_start import start_s
from torchdoctor.queries.hardware import much_load
from torchdoctor.queries.lookup import (
    data_wait_share,
    loader_cpu_share,
    training_loaders,
    training_wait_s,
    workers_keep_up,
)
from torchdoctor.schema import Evidence, LoaderFacts, Recording, fact

MOSTLY_WAITING = 0.5  # CPU time per wall time of a fetch, below: it waits, it does not compute
_LEAST_WAIT = 0.05  # share of the step
_IOWAIT = 0.2
_LEAST_QUEUED = 0.1  # of a fetch, from which the queue is named
_WHOLE = 0.05  # of a worker: 4.01 are four
SAMPLE_TIME = {"sample-time": "Preparing one sample took {seconds:seconds} in the first batches."}
TRACED_WORKERS = {  # the sentences of `traced_workers`
    "workers": "The loader has worker processes already, which do not keep up.",
    "workers-counted": "The loader has worker processes already, {workers} by its waits (one long "
    "wait every {workers} batches), and they do not keep up.",
}
_LEAST_HANDED_S, HANDED_OVER_S = 0.3e-3, 0.5e-3  # by a worker: 0.5 to 0.8 ms a batch measured


def waiting_loader(recording: Recording) -> LoaderFacts | None:
    """Return the training loader if the step waits for it or its workers; None otherwise.

    The wait where a pass begins is of its start, and says nothing of samples.
    """
    loaders = training_loaders(recording)
    wait = data_wait_share(recording)
    if not loaders or wait is None or wait < _LEAST_WAIT or workers_keep_up(recording):
        return None
    return None if _waits_for_starts(recording, loaders[0]) else loaders[0]


def _waits_for_starts(recording: Recording, loader: LoaderFacts) -> bool:
    """Return True if the step hardly waits but at the beginning of each pass.

    Workers then idle once they have made what a short pass needs: how busy they are tells nothing.
    """
    steps = recording.steps
    if steps is None:
        return False
    later_s = training_wait_s(steps) - start_s(recording)
    if loader.num_workers:
        later_s = min(later_s, training_wait_s(steps) - steps.first_batch_s)
    return later_s < _LEAST_WAIT * steps.mean_s


def sample_time(loader: LoaderFacts) -> list[Evidence]:
    """Return how long a sample takes; [] where that is not known."""
    seconds = loader.sample_time_s
    return [fact("sample-time", seconds=seconds)] if seconds is not None else []


def untold_wait(recording: Recording) -> Evidence | None:
    """Return that a fetch of little CPU time may have waited for a CPU alone; None: it did not."""
    share = loader_cpu_share(recording)
    sensors = recording.sensors
    cpus = recording.environment.cpus
    loaders = training_loaders(recording)
    load = much_load(sensors.other_load_cpus, cpus)
    if share is None or share >= MOSTLY_WAITING or load is None:
        return None
    workers = loaders[0].num_workers
    queued = sensors.workers_queued_cpus if workers else loaders[0].sample_queue_share
    if (sensors.iowait_share or 0.0) > _IOWAIT or queued is not None:
        return None  # the share contains the queue
    could = max(min(workers, int(max(cpus, 1.0))), 1)
    return fact("fetch-beside-load", got=share, could=could, load=load, cpus=cpus)


def queued_share(recording: Recording) -> float | None:
    """Return which part of a fetch's CPU time was the queue for a CPU; None: hardly any."""
    loaders = training_loaders(recording)
    sensors = recording.sensors
    queued = loaders[0].sample_queue_share if loaders else None
    if loaders and loaders[0].num_workers:
        could = min(loaders[0].num_workers, max(recording.environment.cpus, 1.0))
        queued = min((sensors.workers_queued_cpus or 0.0) / could, 1.0)
    return queued if queued is not None and queued >= _LEAST_QUEUED else None


def least_step_s(recording: Recording) -> float | None:
    """Return the least seconds of a step while workers prepare its samples; None: not known.

    The CPUs share what samples and training take. Training, which takes the batches over, counts as
    one CPU's work, the least that it takes; on a GPU not at all, as the host mostly waits for it.
    """
    steps = recording.steps
    cpus = recording.environment.usable_cpus
    loaders = training_loaders(recording)
    busy = loader_cpu_share(recording)
    if steps is None or busy is None or cpus is None or loaders[0].num_workers:
        return None
    waits_s = steps.data_wait_s + steps.loader_start_s
    trains_s = 0.0 if recording.has_gpu else max(steps.mean_s - waits_s, 0.0) + _LEAST_HANDED_S
    return max(trains_s, (busy * waits_s + trains_s) / max(cpus, 1.0))


def making_s(recording: Recording, loader: LoaderFacts) -> float | None:
    """Return the seconds in which the training process could make a batch; None: not known."""
    steps = recording.steps
    busy = recording.sensors.workers_cpus
    check = recording.main.sample_check
    times = [] if steps is None or busy is None else [busy * steps.mean_s]
    # A sample that waits for a file server computes nothing: what samples took there counts too.
    if check is not None and check.sample_s is not None and loader.batch_size:
        times.append(check.sample_s * loader.batch_size)
    return max(times, default=None)


def fewest(recording: Recording, loader: LoaderFacts) -> int:
    """Return the fewest workers that would still keep up; 1 where that is not known."""
    steps = recording.steps
    own_s = making_s(recording, loader)
    if steps is None or own_s is None:
        return 1
    return max(math.ceil(own_s / max(steps.mean_s - steps.data_wait_s, 1e-6) - _WHOLE), 1)


def workers_that_keep_up(recording: Recording, loader: LoaderFacts) -> int:
    """Return how many workers prepare a batch in the time that the model needs for one."""
    steps = recording.steps
    if steps is None or steps.mean_s <= 0:
        return 2
    computing = max(steps.mean_s - steps.data_wait_s, 1e-6)
    # Workers that the model waits for are busy all the time: n workers, one batch a step.
    preparing = loader.num_workers * steps.mean_s if loader.num_workers else steps.data_wait_s
    return max(math.ceil(preparing / computing - _WHOLE), 1)


def traced_workers(recording: Recording) -> Evidence | None:
    """Return what a trace shows of the loader's workers; None: it shows none."""
    workers = recording.trace.loader_workers if recording.trace is not None else None
    if not workers:
        return None
    return fact("workers-counted", workers=workers) if workers > 0 else fact("workers")
