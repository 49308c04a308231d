"""Preparing samples beside the training: how many workers that takes, and what it can give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torchdoctor.facts.lookup import loader_cpu_share, training_loaders
from torchdoctor.words.program import LoaderFacts
from torchdoctor.words.recording import Recording

_WHOLE = 0.05  # of a worker: 4.01 are four


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


def given_back_share(recording: Recording, settings: Mapping[str, Any]) -> float:
    """Most of a step that the training may get back from today's workers, beside its waits.

    Ten workers on two CPUs also slow the forward pass: each second of CPU time that they use may
    have stopped the training for one. 0.0 with a setting that has as many workers, or more.
    """
    loaders, steps = training_loaders(recording), recording.steps
    busy = recording.sensors.workers_cpus
    today = loaders[0].num_workers if loaders else 0
    if steps is None or busy is None or settings.get("num_workers", 0) >= today:
        return 0.0
    waits_s = steps.data_wait_s + steps.loader_start_s
    return min(busy, max(1.0 - waits_s / steps.mean_s, 0.0)) if steps.mean_s > 0 else 0.0


def making_s(recording: Recording, loader: LoaderFacts) -> float | None:
    """Seconds that the training process would take to make a batch itself; None: not known.

    What the workers compute for a step, and what samples took that were made there afterwards: a
    sample that waits for a file server computes nothing.
    """
    steps, busy, check = (
        recording.steps,
        recording.sensors.workers_cpus,
        recording.main.sample_check,
    )
    found = [] if steps is None or busy is None else [busy * steps.mean_s]
    if check is not None and check.sample_s is not None and loader.batch_size:
        found.append(check.sample_s * loader.batch_size)
    return max(found, default=None)


def fewest(recording: Recording, loader: LoaderFacts) -> int:
    """How few of workers that keep up would still do so; 1 where that is not known."""
    steps, own_s = recording.steps, making_s(recording, loader)
    if steps is None or own_s is None:
        return 1
    return max(math.ceil(own_s / max(steps.mean_s - steps.data_wait_s, 1e-6) - _WHOLE), 1)


def workers_that_keep_up(recording: Recording, loader: LoaderFacts) -> int:
    """How many workers prepare a batch in the time that the model needs for one."""
    steps = recording.steps
    if steps is None or steps.mean_s <= 0:
        return 2
    computing = max(steps.mean_s - steps.data_wait_s, 1e-6)
    # Workers that the model waits for are busy all the time: n workers, one batch a step.
    preparing = loader.num_workers * steps.mean_s if loader.num_workers else steps.data_wait_s
    return max(math.ceil(preparing / computing - _WHOLE), 1)
