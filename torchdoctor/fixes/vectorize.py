"""Work on whole tensors in place of a Python loop over their elements.

## What it does
Names the loops that read or write tensors element by element, and the operators to write instead.

## Why it helps
Each turn of such a loop dispatches an operator or reads a value back, which takes microseconds
(on a GPU it launches a kernel or waits for one). An operator over the whole tensor pays that once.

## Risks
Sums in another order round differently. A condition on each element becomes `torch.where`, which
computes both sides. Where a turn needs the result of the one before it, the loop may have to stay:
`torch.cumsum`, `torch.cumprod` and the recurrent layers cover the usual cases.

## Make it permanent
    total = x.sum()                                # was: for i in range(n): total += x[i]
    y = torch.where(x > 0, x, 0.1 * x)             # was: if x[i] > 0: ... else: ...
    correct = (predicted == target).sum().item()   # was: correct += int(predicted[i] == target[i])
    values = x.tolist()                            # was: [x[i].item() for i in range(n)]

## Sources
- PyTorch, torch.where: https://docs.pytorch.org/docs/stable/generated/torch.where.html
"""

from typing import Any

from torchdoctor.queries.analysed import element_loops
from torchdoctor.queries.lookup import place
from torchdoctor.queries.loops import inner_loops
from torchdoctor.schema import (
    Evidence,
    FixSpec,
    Location,
    Recording,
    Settings,
    TensorCall,
    fact,
    process,
    tensor_call,
)

_NAMED = 3
_READS = ("item", "tolist", "__bool__", "__float__", "__int__")


def refuses(recording: Recording) -> Evidence | None:
    if inner_loops(recording):
        return None
    if recording.main.analysed_steps == 0:
        return fact("lines-unexamined")
    if not element_loops(recording):
        return fact("no-element-loop")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    lines = [
        f"{place(recording, inner_loop.location, 'the loop')}  {inner_loop.rows[0].text}\n"
        f"# {inner_loop.share:.0%} of the step. "
        "Use one operator over all pieces: broadcasting, torch.bmm, scatter_add, torch._foreach_*."
        for inner_loop in inner_loops(recording)[:_NAMED]
    ]
    for loop in element_loops(recording)[:_NAMED]:
        lines.append(f"{place(recording, loop.location, 'the loop')}  {loop.text}")
        lines.append(f"# {loop.calls_per_step:.0f} turns a step. {_advice(loop)}")
    return "\n".join(lines)


def _location(recording: Recording) -> Location | None:
    elements = [loop.location for loop in element_loops(recording)]
    return next(iter([*elements, *(loop.location for loop in inner_loops(recording))]), None)


def _advice(loop: TensorCall) -> str:
    if loop.name in _READS:
        return "Compute on tensors, and read all values at once after the loop: x.tolist()."
    if loop.name == "__setitem__":
        return "Make the whole tensor at once: torch.where, torch.stack, index_put_, a mask."
    return "Use one operator over the whole tensor: x.sum(), torch.where, x[indices]."


def _seen(name: str, text: str) -> dict[str, Any]:
    call = tensor_call("element", name, text=text, calls_per_step=256.0, host_s=0.001)
    return process(analysed_steps=6, tensor_calls=[call])


FIX = FixSpec(
    name="whole tensors, no Python loop",
    treats=("index-loops", "inner-loop"),
    keeps_results="within rounding",
    untried="what a loop computes stands in the source.",
    no_bound="The calls of a loop are timed, and not the turns around them.",
    refuses=refuses,
    sentences={
        "lines-unexamined": "Which lines go through tensors element by element was not examined.",
        "no-element-loop": "No line of the loop was seen to go through a tensor element by "
        "element.",
    },
    suits=lambda trace: False,
    location=_location,
    instruction=instruction,
    offers=[
        (_seen("__getitem__", "total += x[i]"), "train.py:12  total += x[i]"),
        (_seen("item", "total += x[i].item()"), "x.tolist()"),
        (_seen("__setitem__", "y[i] = 1.0"), "torch.where"),
    ],
    refusals=[({}, "lines-unexamined"), (process(analysed_steps=6), "no-element-loop")],
)
