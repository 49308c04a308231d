"""The loop waits for one worker while batches of others lie ready.

## What it means
A loader with workers hands batches out in the order in which they were asked for. If samples differ
much in cost (long and short recordings, large and small images), later batches may be done while
the next one in order is not. The loop waits, and once the queue is full (`prefetch_factor` batches
a worker) the other workers wait as well.

## How it is measured
In the observed launch, torchdoctor adds up the time that the loop waited for a batch after a later
batch had come out of the workers' queue. This is part of the wait for data.

## Not to be confused with
Workers that are all too slow: nothing lies ready. One slow batch in hundreds: see slow-sample.
"""

from torchdoctor.queries.lookup import data_wait_share, order_wait_share, training_loaders
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process

_FEWEST = 3  # batches


def _examine(recording: Recording) -> Symptoms:
    share = order_wait_share(recording)
    wait = data_wait_share(recording)
    loaders = training_loaders(recording)
    late = sum(loader.overtaken for loader in loaders)
    batches = sum(loader.batches for loader in loaders)
    if share is None or wait is None or share < CHECK.threshold or late < _FEWEST:
        return
    yield Symptom(
        share=share,
        evidence=fact(
            "out-of-order",
            share=share,
            late=late,
            batches=batches,
            waits=wait,
            workers=loaders[0].num_workers,
        ),
        location=loaders[0].location,
    )


_LOADER = {"ident": 0, "num_workers": 4, "batches": 100, "overtaken": 40, "overtaken_s": 0.2}
_STEPS = {"data_wait_s": 0.004}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: the tree's bound for a moderate wait",
    sentences={
        "out-of-order": "{late} of {batches} batches were waited for while a later one of another "
        "worker lay ready: {share:.0%} of {each_step}, of {waits:.0%} spent waiting for data with "
        "{workers} workers.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(loaders=[_LOADER])}],
    quiet=[{"steps": _STEPS, **process(loaders=[{**_LOADER, "overtaken_s": 0.01}])}],
)
