"""Now and then a batch takes very much longer than usual.

## What it means
A slow sample (a large file, a retry, a cold cache) holds up its worker. Batches are delivered in
order, so it holds up all batches behind it as well.

## How it is measured
torchdoctor compares the 99th percentile of the training loader's fetches with their median. The
slow fetches must be a share of the step that matters.

## Not to be confused with
The first batch of an epoch, which waits for the workers to start.
"""

from torchdoctor.queries.lookup import training_loaders
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process

_LEAST_SHARE = 0.02  # of the step


def _examine(recording: Recording) -> Symptoms:
    steps = recording.steps
    loaders = training_loaders(recording)
    if steps is None or not loaders or not steps.fetch_median_s or not steps.fetch_p99_s:
        return
    # One fetch in a hundred: what it costs is spread over a hundred steps.
    share = 0.01 * steps.fetch_p99_s / steps.mean_s
    if steps.fetch_p99_s >= CHECK.threshold * steps.fetch_median_s and share >= _LEAST_SHARE:
        yield Symptom(
            share=share,
            evidence=fact("slow", p99_s=steps.fetch_p99_s, median_s=steps.fetch_median_s),
            location=loaders[0].location,
            severity="moderate",
        )


_LOADED = process(loaders=[{"ident": 0, "batches": 500}])
CHECK = CheckSpec(
    branch="data_loader",
    threshold=10.0,
    unit="times the median: the 99th percentile of the time of a batch",
    source="torchdoctor: a rare sample that holds the queue up, not the usual scatter",
    phases=("data_wait_s", "loader_start_s"),
    sentences={
        "slow": "One batch in a hundred takes {p99_s:seconds} or more, the median "
        "{median_s:seconds} (observed launch).",
    },
    examine=_examine,
    fires=[{"steps": {"fetch_median_s": 0.001, "fetch_p99_s": 0.4}, **_LOADED}],
    quiet=[{"steps": {"fetch_median_s": 0.001, "fetch_p99_s": 0.002}, **_LOADED}],
)
