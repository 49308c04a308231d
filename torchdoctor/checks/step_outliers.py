"""Some steps take very much longer than the others.

What it means
-------------
Checkpoints, evaluation, logging, new input shapes or a busy machine make single steps long;
they cost more than the median shows.

What to do
----------
See what happens in the long steps: print their numbers with the time, and compare them with what
the program does every so many steps. Save checkpoints and log less often, or in a thread; pad
inputs to few lengths, for new shapes are compiled or tuned anew; look at the machine's other
programs. Where the long steps come at random, see gc-pauses and slow-sample.

How it is measured
------------------
99th percentile over the median step of the observed window, where evaluation and the start of
workers do not explain the difference between mean and median.

Not to be confused with
-----------------------
Evaluation at the end of each epoch, which is expected.
"""

from collections.abc import Iterator

from torchdoctor.facts.lookup import long_steps_share
from torchdoctor.words import CheckSpec, Recording, Symptom

THRESHOLD = 3.0


def _examine(recording: Recording) -> Iterator[Symptom]:
    steps = recording.steps
    if steps is None or steps.p99_s is None or steps.median_s <= 0:
        return
    share = long_steps_share(steps)
    if steps.p99_s < THRESHOLD * steps.median_s or share < 0.05 * steps.median_s / steps.mean_s:
        return
    yield Symptom(
        share=share,
        evidence=[
            f"One step in a hundred takes {_time(steps.p99_s)} or more, the median "
            f"{_time(steps.median_s)} (observed launch)."
        ],
        severity="advice",
    )


def _time(seconds: float) -> str:
    """Three digits in the unit that shows them."""
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="other",
    threshold=THRESHOLD,
    unit="times the median step: the 99th percentile",
    source="torchdoctor; SageMaker Debugger marks steps beyond 3 standard deviations",
    examine=_examine,
    fires=[{"steps": {"median_s": 0.008, "mean_s": 0.01, "p99_s": 0.2}}],
    quiet=[
        {"steps": {"median_s": 0.01, "mean_s": 0.01, "p99_s": 0.012}},
        {"steps": {"median_s": 0.008, "mean_s": 0.01, "p99_s": 0.2, "evaluation_s": 0.0019}},
    ],
)
