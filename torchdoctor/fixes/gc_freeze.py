"""Keep Python's garbage collector away from what will live as long as the training does.

## What it does
At the first batch, collects once and moves every living object (modules, the model, the dataset) to
the collector's permanent generation (`gc.freeze()`). From then on the collector looks for garbage
after 50,000 new objects instead of 700 (2,000 from Python 3.12 on).

## Why it helps
To find unused cycles, the collector walks through every container object. In a program with a large
dataset in Python lists these are millions that never become garbage. A full collection then takes a
good part of a second, and on a GPU nothing is launched meanwhile.

## Risks
Garbage is found later: memory may grow by what 50,000 objects hold, tensors included.

## Make it permanent
    import gc
    gc.collect()
    gc.freeze()  # right before the training loop
    gc.set_threshold(50_000, 20, 20)

## Sources
- Python documentation, gc.freeze and gc.set_threshold: https://docs.python.org/3/library/gc.html
"""

import gc
from typing import Any

from torchdoctor.queries.touched import phases
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Recording,
    Settings,
    fact,
)

_WORTH = 0.005  # of the step


def refuses(recording: Recording) -> Evidence | None:
    steps = recording.steps
    if steps is not None and steps.mean_s > 0 and steps.gc_s < _WORTH * steps.mean_s:
        return fact("collection-hardly-matters", share=steps.gc_s / steps.mean_s)
    return None


def apply(torch: Any, settings: Settings, program: Any) -> None:
    def freeze() -> None:
        if not gc.isenabled():
            program.refuse("collector-is-off")
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        program.applied(frozen=gc.get_freeze_count())

    program.set_reason("training-did-not-begin")
    program.at_first_batch(freeze)


FIX: FixSpec = FixSpec(
    name="fewer garbage collections",
    treats=("gc-pauses",),
    keeps_results="exactly",
    when="launch",  # its pauses are hundreds of steps apart, and collecting helps both sides
    p_helps=0.4,
    touches=lambda recording: phases(recording, "gc_s", label="garbage collection"),
    refuses=refuses,
    sentences={
        "collection-hardly-matters": "Garbage collection takes only {share:percent} of the step.",
        "collector-is-off": "The program has switched the garbage collector off.",
    },
    apply=apply,
    instruction=lambda settings, recording: FIX.permanent_form,
    example=Example(
        code="""
import gc
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.ones(8, 4))
for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
    model(x).sum().backward()
print("frozen:", gc.get_freeze_count() > 1000, "threshold:", gc.get_threshold()[0] >= 50_000)
""",
        without="frozen: False threshold: False",
        with_fix="frozen: True threshold: True",
    ),
)
