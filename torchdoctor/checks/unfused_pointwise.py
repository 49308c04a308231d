"""Pointwise kernels run one after the other, each through memory.

What it means
-------------
Adding, scaling, activations and casts read and write all of their data and compute next to nothing.
Two or more of them in a row move the same data through memory again and again; a compiler makes one
kernel of such a chain, which moves it once.

How it is measured
------------------
Runs of two and more pointwise kernels on a stream with no other kernel or copy between them, and
the time in which nothing else runs on the GPU. What an optimizer launches is left out. "At most"
counts one kernel as long as the longest of each chain: the trace does not say whether one kernel
reads what the one before has written. The line is named where the trace has Python stacks.

Not to be confused with
-----------------------
Many small kernels, whose launch costs the host more than they cost the GPU; optimizers that update
tensor by tensor (fused and foreach are their fix).
"""

from collections.abc import Iterator
from typing import Any

from torchdoctor.words import CheckSpec, PointwiseChain, Recording, Symptom

THRESHOLD = 0.10


def _examine(recording: Recording) -> Iterator[Symptom]:
    trace = recording.trace
    found = trace.pointwise if trace is not None else None
    if trace is None or found is None or not trace.step_s:
        return
    share = min(found.device_s / trace.step_s, 1.0)
    if share < THRESHOLD:
        return
    yield Symptom(
        share=share,
        evidence=[
            f"{found.kernels:.0f} pointwise kernels in {found.chains:.0f} chains take "
            f"{share:.0%} of the step with the GPU to themselves; fused, they would take at "
            f"most {min(found.saved_s / trace.step_s, 1.0):.0%} of it less.",
            *[_said(one, trace.step_s) for one in found.costliest[:1]],
        ],
        location=next((one.location for one in found.costliest if one.location), None),
        severity="moderate" if share >= 0.2 else "advice",
    )


def _said(one: PointwiseChain, step_s: float) -> str:
    more = one.kernels - len(one.operators)
    names = ", ".join(one.operators) + (f" and {more} more" if more > 0 else "")
    return (
        f"The costliest chain, {one.times_per_step:.0f} times a step and "
        f"{one.device_s / step_s:.0%} of it: {names}."
    )


def _recording(device_s: float) -> dict[str, Any]:
    chain = {
        "operators": ["aten::mul", "aten::add", "aten::tanh"],
        "kernels": 3,
        "times_per_step": 12.0,
        "device_s": device_s,
        "location": {"file": "model.py", "line": 12},
    }
    found = {"chains": 12.0, "kernels": 36.0, "device_s": device_s, "saved_s": device_s / 2}
    trace = {"path": "t", "steps": 4, "step_s": 0.1, "has_device": True}
    return {"trace": {**trace, "pointwise": {**found, "costliest": [chain]}}}


CHECK = CheckSpec(
    file=__file__,
    page=__doc__,
    branch="gpu",
    threshold=THRESHOLD,
    unit="% of the step",
    source="torchdoctor: compiling does not pay for less",
    examine=_examine,
    fires=[_recording(0.03), _recording(0.012)],
    quiet=[_recording(0.005)],
)
