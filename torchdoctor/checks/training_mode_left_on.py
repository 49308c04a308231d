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

from torchdoctor.words import CheckSpec, Recording, Symptom, Symptoms, trace
from torchdoctor.words.figures import counted


def _examine(recording: Recording) -> Symptoms:
    traced = recording.trace
    # Of a program that was run more is known than its profiled steps say.
    if traced is None or traced.trains or recording.processes:
        return
    parts = []
    if traced.active_dropouts:
        parts.append(f"dropout drops in {counted(traced.active_dropouts, 'call')}")
    if traced.training_norms:
        kernels = counted(traced.training_norms, "kernel")
        parts.append(f"batch norm computes statistics in {kernels}")
    if not parts:
        return
    condition = "" if traced.trains is False else "if this is inference, "
    yield Symptom(
        evidence=f"No backward pass is in the trace, but {' and '.join(parts)}: "
        f"{condition}the model is in training mode, and its results are wrong.",
        severity="moderate" if traced.trains is False else "advice",
    )


CHECK = CheckSpec(
    branch="other",
    threshold=1,
    unit="call in training mode without a backward pass",
    source="torchdoctor: one such call makes results wrong",
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
