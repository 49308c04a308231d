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

from torchdoctor.facts.lookup import place
from torchdoctor.facts.stacks import inline_preparation
from torchdoctor.words import CheckSpec, Recording, StackSample, Symptom, Symptoms, process

# Innermost frames of a batch that another thread or process makes: a queue, a lock, a pipe.
_WAITS = re.compile(r"(^|/)(threading|queue|selectors|socket)\.py |multiprocessing/|futures/")


def _examine(recording: Recording) -> Symptoms:
    preparation = inline_preparation(recording)
    if preparation is None or preparation.share < CHECK.threshold:
        return
    top = preparation.top
    yield Symptom(
        share=preparation.share,
        evidence=[
            _where(recording, top),
            f"{preparation.share:.0%} of each step passes on the host between the end of a step "
            "and the next forward, with no DataLoader at work.",
        ],
        location=top.location if top is not None else None,
    )


def _where(recording: Recording, top: StackSample | None) -> str:
    if top is None:
        return "Batches are prepared in the loop itself, one after the other with the model."
    at = place(recording, top.location)
    if _WAITS.search(top.leaf):
        return f"The loop waits at {at} for another thread or process ({top.leaf})."
    function = top.location.function
    named = function if function and function != "<module>" else "the script's own loop"
    return (
        "Batches are prepared in the loop itself, one after the other with the model: most often "
        f"in {named} at {at} ({top.leaf})."
    )


_STACK = {
    "location": {"file": "/w/train.py", "line": 12, "function": "get_batch"},
    "phase": "after_step",
    "count": 90,
    "leaf": "numpy/core/memmap.py __getitem__",
}
_LOSS_READ = {**_STACK, "leaf": "w/train.py get_batch", "text": "total += loss.item()"}
_CLEARED = {**_STACK, "leaf": "torch/optim/optimizer.py zero_grad"}
_STEPS = {"boundary": {"kind": "optimizer"}, "before_forward_s": 0.006, "other_s": 0.007}
CHECK = CheckSpec(
    branch="data_loader",
    threshold=0.05,
    unit="% of the step",
    source="XProf: moderately input-bound above 5 %",
    examine=_examine,
    fires=[{"steps": _STEPS, **process(stacks=[_STACK])}],
    quiet=[
        {"steps": _STEPS, **process(stacks=[_CLEARED])},
        {"steps": _STEPS, **process(stacks=[_LOSS_READ])},
    ],
)
