"""Taking batches over from worker processes takes the time.

## What it means
Batches lie ready, and the step waits all the same. The training process maps shared memory and
unpickles Python objects for each batch, and the workers use processor time that the model could
use. The samples are so cheap that making them costs no more than handing them over.

## What to do
Try fewer workers, and none: `num_workers=0` makes the batch where it is used. If the data lie in
memory as tensors, index a whole batch at once (`data[indices]`, or a data set's own
`__getitems__`). Put few large tensors into a batch instead of many small ones.

## How it is measured
In the observing launch, the training process notes each time that it asks the workers' queue
whether a batch lay in it from the start, and compares the time of these calls with that of the
others. The first batches of an epoch are left out. The share is that of taking over alone.

## Not to be confused with
Workers that are too slow: there the queue is empty where the step waits (loader-cpu-bound,
loader-io-bound). A sampler that computes in the training process; evaluation's own loader.
"""

from torchdoctor.queries.lookup import (
    data_wait_share,
    taken_over_s,
    training_loaders,
    workers_keep_up,
)
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process

_LEAST_WAIT = 0.05  # share of the step


def _examine(recording: Recording) -> Symptoms:
    waits = data_wait_share(recording)
    taken_s = taken_over_s(recording)
    steps = recording.steps
    if waits is None or taken_s is None or steps is None or not workers_keep_up(recording):
        return
    share = min(waits, taken_s / steps.mean_s)
    if share < _LEAST_WAIT:
        return
    loader = training_loaders(recording)[0]
    yield Symptom(
        share=share,
        evidence=fact("ready", workers=loader.num_workers, seconds=taken_s),
        location=loader.location,
    )


_LOADER = {"ident": 0, "num_workers": 4, "batches": 500, "looks": 480}
_READY = {**_LOADER, "taken_over_s": 0.9, "awaited_s": 0.1}
_STEPS = {"data_wait_s": 0.002, "forward_s": 0.008}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.5,
    unit="% of the waits for workers begin with a batch that lies ready",
    source="torchdoctor: most of the wait is no wait for a worker",
    phases=("data_wait_s", "loader_start_s"),
    sentences={
        "ready": "Batches of the {workers:counted worker} lie ready where the step waits: the "
        "time goes into taking them over, {seconds:seconds} {a_step}, and more workers would not "
        "change that.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(loaders=[_READY])}],
    quiet=[
        {"steps": _STEPS, **process(loaders=[{**_LOADER, "taken_over_s": 0.1, "awaited_s": 2.0}])},
        # A sampler's work, or evaluation's loader: the step waits, and hardly takes over.
        {
            "steps": {"data_wait_s": 0.02, "forward_s": 0.008, "mean_s": 0.03},
            **process(loaders=[{**_LOADER, "taken_over_s": 0.5, "awaited_s": 0.0}]),
        },
    ],
)
