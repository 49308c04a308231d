"""Gradients that are only accumulated are exchanged all the same.

## What it means
DistributedDataParallel sends all gradients to the other ranks in each backward pass. Where the
optimizer steps after several of them, only the last has to: sums can be exchanged once.

## What to do
Put the forward and backward passes of all but the last batch of an update under
`model.no_sync()`. Let the number of batches be the same on each rank.

## How it is measured
torchdoctor counts backward passes and optimizer steps of a model in DistributedDataParallel. What
the exchange takes is the exposed time of collectives in the trace; all but one exchange of an
update can be saved. Whether the program leaves some out itself shows when the fix is tried.

## Not to be confused with
Exchange that is slow (communication-share), and ranks that wait for each other (rank-imbalance).
"""

from torchdoctor.queries.ranks import ACCUMULATED, batches_of_update
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    batches = batches_of_update(recording)
    exposed = recording.shares.communication
    if batches is None or batches < CHECK.threshold:
        return
    saved = exposed * (1 - 1 / batches) if exposed else None
    evidence = [fact("accumulated", batches=batches, share=saved)]
    line = recording.main.flags.backward_location
    yield Symptom(share=saved, evidence=evidence, location=line, severity="high")


_DDP = {"models": [{"ident": 0, "cls": "Net", "data_parallel": "DistributedDataParallel"}]}
_RARELY = {"backwards_per_step": 1.0, "optimizer_steps_per_step": 0.125}
CHECK = CheckSpec(
    branch="communication",
    threshold=ACCUMULATED,
    unit="backward passes to an optimizer step",
    source="PyTorch documentation (DistributedDataParallel): no_sync accumulates without exchange",
    sentences={
        "accumulated": "Gradients are exchanged in each of about {batches:.0f} backward passes to "
        "an optimizer step; model.no_sync() exchanges them once[ and saves {share:.0%} of "
        "{each_step} at most].",
    },
    examine=_examine,
    fires=[
        {"steps": _RARELY, **process(**_DDP)},
        {"steps": _RARELY, "shares": {"communication": 0.4, "cpu": 0.6}, **process(**_DDP)},
    ],
    quiet=[{"steps": {"backwards_per_step": 1.0}, **process(**_DDP)}, {"steps": _RARELY}],
)
