"""Batches are prepared in the training loop itself, one after the other with the model.

## What it means
A function such as `get_batch()` reads and transforms the next batch while the model waits. The
program has the same problem as with a DataLoader without workers, but no DataLoader shows it.

## What to do
Move the preparation into a Dataset and let a DataLoader's workers prepare batches while the model
computes. Or make it cheap: index once with an array of indices instead of element by element, keep
the data as one tensor (on the device, if it fits), convert types once before the loop.

## How it is measured
The probe times the host between the end of one step and the first forward of the next, outside any
loader. Stacks sampled in that time name the line. Clearing gradients, moving tensors and logging do
not count, nor does a forward that no module's call shows (`torch.func`, `model.forward()`).

## Not to be confused with
Rollouts of reinforcement learning, which call the model: only time before any forward counts.
"""

import re

from torchdoctor.queries.stacks import inline_preparation
from torchdoctor.schema import (
    CheckSpec,
    Evidence,
    Recording,
    StackSample,
    Symptom,
    Symptoms,
    fact,
    process,
)

# Innermost frames of a batch that another thread or process makes: a queue, a lock, a pipe.
_WAITS = re.compile(r"(^|/)(threading|queue|selectors|socket)\.py |multiprocessing/|futures/")


def _examine(recording: Recording) -> Symptoms:
    preparation = inline_preparation(recording)
    if preparation is None or preparation.share < CHECK.threshold:
        return
    top = preparation.top
    yield Symptom(
        share=preparation.share,
        evidence=[_where(top), fact("on-host", share=preparation.share)],
        location=top.location if top is not None else None,
    )


def _where(top: StackSample | None) -> Evidence:
    if top is None:
        return fact("in-loop")
    if _WAITS.search(top.leaf):
        return fact(
            "waits",
            location=top.location,
            leaf_file=top.leaf_file,
            leaf_function=top.leaf_function,
        )
    function = top.location.function
    named = function if function and function != "<module>" else None
    return fact(
        "in-loop-at",
        location=top.location,
        function=named,
        leaf_file=top.leaf_file,
        leaf_function=top.leaf_function,
    )


_STACK = {
    "location": {"file": "/w/train.py", "line": 12, "function": "get_batch"},
    "phase": "after_step",
    "count": 90,
    "leaf_file": "numpy/core/memmap.py",
    "leaf_function": "__getitem__",
}
_LOSS_READ = {
    **_STACK,
    "leaf_file": "w/train.py",
    "leaf_function": "get_batch",
    "text": "total += loss.item()",
}
_CLEARED = {**_STACK, "leaf_file": "torch/optim/optimizer.py", "leaf_function": "zero_grad"}
_STEPS = {"boundary": {"kind": "optimizer"}, "before_forward_s": 0.006, "other_s": 0.007}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.05,
    unit="% of the step",
    source="XProf: moderately input-bound above 5 %",
    sentences={
        "in-loop": "Batches are prepared in the loop itself, one after the other with the model.",
        "in-loop-at": "Batches are prepared in the loop itself, one after the other with the "
        "model: most often [in {function} ]at {location:place} ({leaf_file} "
        "{leaf_function}).",
        "waits": "The loop waits at {location:place} for another thread or process ({leaf_file} "
        "{leaf_function}).",
        "on-host": "{share:.0%} of {each_step} passes on the host between the end of a step and "
        "the next forward, with no DataLoader at work.",
    },
    examine=_examine,
    fires=[{"steps": _STEPS, **process(stacks=[_STACK])}],
    quiet=[
        {"steps": _STEPS, **process(stacks=[_CLEARED])},
        {"steps": _STEPS, **process(stacks=[_LOSS_READ])},
    ],
)
