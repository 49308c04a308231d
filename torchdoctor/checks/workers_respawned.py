"""Workers are started anew for each epoch.

## What it means
Without `persistent_workers=True` a DataLoader's workers live for one epoch. With short epochs, or a
dataset that is slow to open, starting them costs more than loading.

## How it is measured
The probe times `iter(loader)` and the extra wait for the first batch of each iterator, per step.

## Not to be confused with
The one start at the beginning of training, which is not in the measured steps.
"""

from torchdoctor.queries.lookup import respawn_share, training_loaders
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    share = respawn_share(recording)
    loaders = training_loaders(recording)
    if share is None or share < CHECK.threshold:
        return
    loader = loaders[0]
    remedy = "construct-once" if len(loaders) > 1 else "keep-them"
    yield Symptom(
        share=share,
        evidence=[
            fact("started-again", share=share, workers=loader.num_workers),
            fact(remedy, location=loader.location, times=len(loaders)),
        ],
        location=loader.location,
    )


_LOADER = {"ident": 0, "num_workers": 2, "batches": 50, "iterators": 5}
_STEPS = {"loader_start_s": 0.002}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.03,
    unit="% of the step",
    source="torchdoctor: what a trial can tell from noise on most machines",
    phases=("data_wait_s", "loader_start_s"),
    sentences={
        "started-again": "{workers} workers are started for each epoch: {share:.0%} of the mean "
        "step goes into starting them and waiting for their first batch.",
        "keep-them": "persistent_workers=True keeps them[ ({location:place})].",
        "construct-once": "It is constructed {times} times[ ({location:place})]: construct it "
        "once before the loop, with persistent_workers=True.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(loaders=[_LOADER])}],
    quiet=[{"steps": _STEPS, **process(loaders=[{**_LOADER, "persistent_workers": True}])}],
)
