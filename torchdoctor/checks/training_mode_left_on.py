"""A model that only infers is in training mode.

## What it means
Dropout then sets numbers to zero at random, and batch norm uses the statistics of the batch at hand
in place of those that it learned: results are wrong, and both take time. `model.eval()` ends it.

## How it is measured
The trace has no backward pass and no optimizer, but dropout draws masks (bernoulli_ on a CPU,
native_dropout on a GPU), or batch norm computes statistics. If the window shows a part of a
training's step alone, the mode is right.

## Not to be confused with
Monte Carlo dropout, which draws on purpose.
"""

from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, TraceStatistics, fact, trace


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    # Of a program that was run more is known than its profiled steps say.
    if traced is None or traced.trains or recording.processes:
        return
    shown = _shown_by(traced)
    if shown is None:
        return
    infers = traced.trains is False
    by_it = fact(shown, dropouts=traced.active_dropouts, norms=traced.training_norms)
    yield Symptom(
        evidence=[by_it, fact("results-wrong" if infers else "results-wrong-if-inference")],
        severity="moderate" if infers else "advice",
    )


def _shown_by(traced: TraceStatistics) -> str | None:
    """Return the fact that names what works as in training; None: nothing does."""
    if traced.active_dropouts and traced.training_norms:
        return "dropout-and-batch-norm"
    if traced.active_dropouts:
        return "dropout"
    return "batch-norm" if traced.training_norms else None


_NO_BACKWARD = "No backward pass is in the trace, but"
_DROPS = "dropout drops in {dropouts:counted call}"
_NORMS = "batch norm computes statistics in {norms:counted kernel}"
CHECK = CheckSpec(
    branch="other",
    threshold=1,
    unit="call in training mode without a backward pass",
    source="torchdoctor: one such call makes results wrong",
    sentences={
        "dropout": f"{_NO_BACKWARD} {_DROPS}.",
        "batch-norm": f"{_NO_BACKWARD} {_NORMS}.",
        "dropout-and-batch-norm": f"{_NO_BACKWARD} {_DROPS} and {_NORMS}.",
        "results-wrong": "The model is in training mode, and its results are wrong.",
        "results-wrong-if-inference": "If this is inference, the model is in training mode, and "
        "its results are wrong.",
    },
    opens_verdict=True,
    examine=_examine,
    fires=[
        {"processes": [], **trace(trains=False, active_dropouts=12)},
        {"processes": [], **trace(training_norms=3)},
    ],
    quiet=[
        {"processes": [], **trace(trains=True, active_dropouts=12)},
        trace(trains=False, active_dropouts=12),
    ],
)
