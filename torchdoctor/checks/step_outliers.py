"""Some steps take very much longer than the others.

## What it means
Checkpoints, evaluation, logging, new input shapes or a busy machine make single steps long;
they cost more than the median shows.

## What to do
Print the numbers of the long steps with the time, and compare them with what the program does every
so many steps. Save checkpoints and log less often, or in a thread. Pad inputs to few lengths,
because new shapes are compiled or tuned anew. Look at the machine's other programs. If the long
steps come at random, see gc-pauses and slow-sample.

## How it is measured
torchdoctor compares the 99th percentile with the median step of the observed window. Evaluation and
the start of workers must not explain the difference between mean and median, nor the time between
epochs, which is told by itself.

## Not to be confused with
Evaluation at the end of each epoch, which is expected.
"""

from torchdoctor.queries.lookup import long_steps_share, phase_share
from torchdoctor.schema import CheckSpec, Recording, Symptom, Symptoms, fact

_LEAST_SHARE = 0.05  # of the median step; of the training time that passes between epochs


def _examine(recording: Recording) -> Symptoms:
    steps = recording.steps
    if steps is None or steps.median_s <= 0:
        return
    between = phase_share(recording, "between_epochs_s") or 0.0
    if between >= _LEAST_SHARE:
        rows = [row for row in recording.main.stacks if row.phase == "between_epochs"]
        where = max(rows, key=lambda row: row.count).location if rows else None
        passing = fact("between-epochs", share=between, location=where)
        yield Symptom(share=between, evidence=passing, location=where, severity="moderate")
    share = long_steps_share(steps)
    if steps.p99_s is None or steps.p99_s < CHECK.threshold * steps.median_s:
        return
    if share >= max(_LEAST_SHARE * steps.median_s / steps.mean_s, between):
        yield Symptom(
            share=share,
            evidence=fact("long-steps", p99_s=steps.p99_s, median_s=steps.median_s),
            severity="advice",
        )


_UNEVEN = {"median_s": 0.008, "mean_s": 0.01, "p99_s": 0.2}
CHECK = CheckSpec(
    branch="other",
    threshold=3.0,
    unit="times the median step: the 99th percentile",
    source="torchdoctor; SageMaker Debugger marks steps beyond 3 standard deviations",
    sentences={
        "between-epochs": "[{location:place}: ]{share:.0%} of the time passes between epochs.",
        "long-steps": "One {unit} in a hundred takes {p99_s:seconds} or more, the median "
        "{median_s:seconds} (observed launch).",
    },
    examine=_examine,
    fires=[{"steps": _UNEVEN}, {"steps": {"between_epochs_s": 0.004}}],
    quiet=[
        {"steps": {"median_s": 0.01, "mean_s": 0.01, "p99_s": 0.012}},
        {"steps": {**_UNEVEN, "evaluation_s": 0.0019}},
    ],
)
