"""What preparing samples beside the training can give at most on the CPUs that there are."""

from __future__ import annotations

from torchdoctor.records.lookup import loader_cpu_share, training_loaders
from torchdoctor.records.recording import Recording


def least_step_s(recording: Recording) -> float | None:
    """Seconds that a step takes at least while workers prepare its samples; None: not known.

    Workers move the work, they do not take it away: however many there are, the CPUs share what
    the samples and the training take. The training is counted as one CPU's work, which is the
    least that it takes; on a GPU not at all, as the host mostly waits for it.
    """
    steps, cpus = recording.steps, recording.environment.usable_cpus
    loaders, busy = training_loaders(recording), loader_cpu_share(recording)
    if steps is None or busy is None or cpus is None or loaders[0].num_workers:
        return None
    waits_s = steps.data_wait_s + steps.loader_start_s
    trains_s = 0.0 if recording.has_gpu else max(steps.mean_s - waits_s, 0.0)
    return max(trains_s, (busy * waits_s + trains_s) / max(cpus, 1.0))
