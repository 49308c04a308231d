"""A model that only infers is in training mode.

## What it means
Dropout then sets numbers to zero at random, and batch norm uses the statistics of the batch at hand
in place of those that it learned: results are wrong, and both take time. `model.eval()` ends it.

## How it is measured
In a run, the probe notes the mode of each call, and looks for layers that compute something else in
it; half of a model's calls have to be in it. A trace has no backward pass and no optimizer, but
dropout draws masks (bernoulli_ on a CPU, native_dropout on a GPU), or batch norm computes
statistics. If the window shows a part of a training's step alone, the mode is right.

## Not to be confused with
Monte Carlo dropout, which draws on purpose.
"""

from torchdoctor.queries.lookup import in_training_mode
from torchdoctor.schema import (
    CheckSpec,
    Recording,
    Symptom,
    Symptoms,
    TraceStatistics,
    fact,
    process,
    trace,
)


def _examine(recording: Recording) -> Symptoms:
    for model in in_training_mode(recording):
        trains = model.forwards - model.eval_forwards
        if trains >= _MOST * model.forwards:
            layers = model.mode_dependent[:2]
            yield Symptom(
                evidence=fact("calls", trains=trains, calls=model.forwards, layers=layers),
                location=model.call.location if model.call else model.location,
                severity="high",
            )
    # Of a program that was run more is known than its profiled steps say.
    if recording.trace is not None and not recording.processes:
        yield from _of_trace(recording.trace)


def _of_trace(traced: TraceStatistics) -> Symptoms:
    shown = _shown_by(traced)
    if traced.trains or shown is None:
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


_MOST = 0.5  # of a model's calls, in a run
_INFERS = {"steps": {"boundary": {"kind": "forward", "learned_by": "forward"}}}
_MODEL = {"ident": 0, "forwards": 20, "mode_dependent": ["BatchNorm2d", "Dropout"]}
_NO_BACKWARD = "No backward pass is in the trace, but"
_DROPS = "dropout drops in {dropouts:counted call}"
_NORMS = "batch norm computes statistics in {norms:counted kernel}"
CHECK = CheckSpec(
    branch="other",
    threshold=1,
    unit="call in training mode without a backward pass",
    source="torchdoctor: one such call makes results wrong",
    sentences={
        "calls": "{trains:,} of {calls:counted call} ran in training mode, which changes "
        "{layers:list| and }: the results are not those of the trained model.",
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
        {**_INFERS, **process(models=[_MODEL])},
        {"processes": [], **trace(trains=False, active_dropouts=12)},
        {"processes": [], **trace(training_norms=3)},
    ],
    quiet=[
        {**_INFERS, **process(models=[{**_MODEL, "eval_forwards": 20}])},
        {**_INFERS, **process(models=[{**_MODEL, "mode_dependent": []}])},
        {"steps": {}, **process(models=[_MODEL])},
        {"processes": [], **trace(trains=True, active_dropouts=12)},
        trace(trains=False, active_dropouts=12),
    ],
)
