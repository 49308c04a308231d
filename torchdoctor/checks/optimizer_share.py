"""The optimizer takes a large share of the step.

What it means
-------------
Updating the parameters costs memory bandwidth or dispatch. With small batches it can be as long
as the backward.

How it is measured
------------------
Time inside optimizer.step() without the closure's forward and backward, over the step.

Not to be confused with
-----------------------
The closure of LBFGS, which is forward and backward.
"""

from collections.abc import Iterator

from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 0.2


def _examine(recording: Recording) -> Iterator[Symptom]:
    steps = recording.steps
    if steps is None or steps.mean_s <= 0 or steps.optimizer_s / steps.mean_s < THRESHOLD:
        return
    share = steps.optimizer_s / steps.mean_s
    location = recording.main.optimizers[0].location if recording.main.optimizers else None
    yield Symptom(
        share=share,
        evidence=[f"optimizer.step() takes {share:.0%} of each step."],
        location=location,
        severity="moderate",
    )


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="cpu",
    threshold=THRESHOLD,
    unit="% of the step",
    source="torchdoctor: a fifth of the step is worth a look",
    phases=("optimizer_s",),
    examine=_examine,
    fires=[{"steps": {"optimizer_s": 0.004}}],
    quiet=[{"steps": {"optimizer_s": 0.0004}}],
)
