"""Each epoch begins with a wait of its own.

## What it means
Before the first batch of an epoch the order of its samples is drawn, a data set opens its files
again, or a buffer is filled. That takes as long for a short epoch as for a long one: no worker and
no faster sample makes it shorter.

## What to do
Make epochs longer (a larger `num_samples`), draw once for several epochs, or draw from sums of
weights that are made once: with `sums = np.cumsum(weights)`, each epoch takes
`np.searchsorted(sums, rng.random(n) * sums[-1], side="right")`.

## How it is measured
The probe times each wait for a batch. What the first one of an epoch takes beyond a usual one is
the beginning's, with `iter(loader)`. Sampled stacks name the line that draws.

## Not to be confused with
Workers that each epoch starts again (workers-respawned). A loader that is slow for each sample
(loader-cpu-bound, loader-io-bound), whose share leaves the beginning out.
"""

from torchdoctor.queries.epoch_start import sampler_line, sampler_rows, start_s
from torchdoctor.queries.lookup import share_of_seconds, training_loaders
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    steps = recording.steps
    seconds = start_s(recording)
    share = share_of_seconds(recording, seconds)
    if steps is None or share is None or share < CHECK.threshold:
        return
    loaders = training_loaders(recording)
    line = sampler_line(recording)
    batches = sum(loader.batches for loader in loaders)
    per_epoch = batches / max(sum(loader.iterators for loader in loaders), 1)
    starts = fact(
        "starts",
        share=share,
        part=min(seconds / steps.data_wait_s, 1.0) if steps.data_wait_s > 0 else None,
        batches=per_epoch,
        each_s=seconds * per_epoch,
    )
    evidence = [starts]
    for row in sampler_rows(recording)[:1]:
        evidence.append(fact("draws", location=row.location, text=row.text or None))
    yield Symptom(share=share, evidence=evidence, location=line or loaders[0].location)


_LOADER = {"ident": 0, "batches": 50, "iterators": 5, "num_workers": 0}
_STEPS = {"data_wait_s": 0.008, "first_batch_s": 0.006}
_ROW = {
    "location": {"file": "/w/train.py", "line": 12, "function": "main"},
    "phase": "loader",
    "count": 30,
    "leaf_file": "utils/data/sampler.py",
    "leaf_function": "__iter__",
    "text": "for x, y in loader:",
}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.05,
    unit="% of the step",
    source="torchdoctor: as for moderate waits for data",
    phases=("data_wait_s", "loader_start_s"),
    sentences={
        "starts": "The beginning of each epoch takes {each_s:seconds}, {share:.0%} of {each_step} "
        "on average[ and {part:.0%} of the wait for data]: an epoch has {batches:.0f} batches.",
        "draws": "Then the order of samples is drawn, at {location:place}[ ({text})].",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(loaders=[_LOADER], stacks=[_ROW])}],
    quiet=[
        {"steps": {**_STEPS, "first_batch_s": 0.0001}, **process(loaders=[_LOADER])},
        {"steps": _STEPS, **process(loaders=[{**_LOADER, "num_workers": 2}])},
        {"steps": _STEPS, **process(loaders=[{**_LOADER, "iterators": 1}])},
    ],
)
