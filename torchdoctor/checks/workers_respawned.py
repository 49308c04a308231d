"""Workers are started anew for each epoch.

What it means
-------------
Without `persistent_workers=True` a DataLoader starts its workers at the beginning of every
epoch and ends them after it. With short epochs, or a dataset that is slow to open, starting
costs more than loading.

How it is measured
------------------
Time inside `iter(loader)` plus the extra wait for the first batch of each iterator, per step.

Not to be confused with
-----------------------
The one start at the beginning of training, which is not in the measured steps.
"""

from collections.abc import Iterator

from torchdoctor.facts.lookup import place, respawn_share, training_loaders
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.03


def _examine(recording: Recording) -> Iterator[Symptom]:
    share, loaders = respawn_share(recording), training_loaders(recording)
    if share is None or share < THRESHOLD:
        return
    loader = loaders[0]
    where = place(recording, loader.location, "where it is made")
    if len(loaders) > 1:
        remedy = (
            f"It is constructed {len(loaders)} times ({where}): construct it once before the "
            "loop, with persistent_workers=True."
        )
    else:
        remedy = f"persistent_workers=True keeps them ({where})."
    yield Symptom(
        share=share,
        evidence=[
            f"{loader.num_workers} workers are started for each epoch: {share:.0%} of the "
            "mean step goes into starting them and waiting for their first batch.",
            remedy,
        ],
        location=loader.location,
    )


_LOADER = {"ident": 0, "num_workers": 2, "batches": 50, "iterators": 5}

CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="data_loader",
    threshold=THRESHOLD,
    unit="% of the step",
    source="torchdoctor: what a trial can tell from noise on most machines",
    phases=("data_wait_s", "loader_start_s"),
    examine=_examine,
    fires=[{"steps": {"loader_start_s": 0.002}, "processes": [{"pid": 1, "loaders": [_LOADER]}]}],
    quiet=[
        {
            "steps": {"loader_start_s": 0.002},
            "processes": [{"pid": 1, "loaders": [{**_LOADER, "persistent_workers": True}]}],
        }
    ],
)
