"""The optimizer takes a large share of the step.

## What it means
Updates cost memory bandwidth or dispatch: with small batches as much as the backward.

## How it is measured
The probe times optimizer.step(), without the closure's forward and backward.

## Not to be confused with
The closure of LBFGS, which is forward and backward.
"""

from torchdoctor.queries.lookup import phase_share
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact, process


def _examine(recording: Recording) -> Symptoms:
    share = phase_share(recording, "optimizer_s")
    optimizers = recording.main.optimizers
    if share is not None and share >= CHECK.threshold:
        yield Symptom(
            share=share,
            evidence=fact("share", share=share),
            location=optimizers[0].location if optimizers else None,
            severity="moderate",
        )


_GPU = process(models=[{"ident": 0, "device": "cuda:0"}])
_BUSY_GPU = {"shares": {"gpu": 0.97, "cpu": 0.03}, **_GPU}
CHECK = CheckSpec(
    branch="cpu",
    threshold=0.2,
    unit="% of the step",
    source="torchdoctor: a fifth of the step is worth a look",
    phases=("optimizer_s",),
    sentences={
        "share": "optimizer.step() takes {share:.0%} of {each_step}.",
    },
    examine=_examine,
    fires=[
        {"steps": {"optimizer_s": 0.004}},
        {"steps": {"optimizer_s": 0.004, "device_clock": True}, **_BUSY_GPU},
    ],
    quiet=[
        {"steps": {"optimizer_s": 0.0004}},
        # There the host waits until the GPU's queue has room.
        {"steps": {"optimizer_s": 0.004}, **_BUSY_GPU},
        # It may, where only the host's clock tells.
        {"steps": {"optimizer_s": 0.004}, **_GPU},
    ],
)
