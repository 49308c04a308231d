"""Stop asking the GPU for a value in every step.

## What it does
In the trial, `torch.cuda.empty_cache()` and `torch.cuda.synchronize()` do nothing. A value that the
program reads (`.item()`, `.cpu()`, `print(loss)`) can only be taken out in the source: each such
line is named with its time, and a sum that is only printed is an edit.

## Why it helps
To read a value the host waits until the GPU has computed it; by then the queue is empty, and the
GPU waits in turn. `empty_cache` gives memory back that the next step has to ask for again.

## Risks
None for training. What is printed may come later. Times that the program takes by itself around a
removed `synchronize` no longer mean anything.

## Make it permanent
    total += loss.detach()                     # sum on the device
    if step % 50 == 0:                         # read now and then
        print(total.item())

## Sources
- PyTorch Tuning Guide: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

import re
from typing import Any

from torchdoctor.edits import DetachEdit, Edit, RemoveEdit
from torchdoctor.fixes._parts import Lines
from torchdoctor.queries.touched import synchronization
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Recording,
    Settings,
    TensorCall,
    TraceStatistics,
    fact,
)

_NOTABLE = 0.05  # of the step
_NOT_NEEDED = ("synchronize", "empty_cache")
_SUMMED = re.compile(r"([A-Za-z_]\w*)\s*\+=.*\.item\(\)")


def _advise(call: TensorCall) -> str:
    if call.name in _NOT_NEEDED:
        return f"remove torch.cuda.{call.name}()"
    if _SUMMED.match(call.text):
        return "add .detach() instead of .item(); read the sum at the end"
    name = "print" if call.name in ("__repr__", "__format__") else call.name.strip("_")
    return f"{name} waits: do it every 50 steps, or after the loop"


_WAITS = Lines(
    kinds=("wait",),
    unseen="What waits for the GPU was",
    none="No line of the training loop waits for the GPU.",
    otherwise="where it waits",
    advise=_advise,
)


def refuses(recording: Recording) -> Evidence | None:
    if not recording.has_gpu:
        return fact("no-gpu")
    return _WAITS.refuses(recording)


def suits(trace: TraceStatistics) -> bool:
    """Return True if the device idles for values that the host reads, or memory is given back."""
    to_host_s = trace.d2h_wait_s or 0.0
    held_s = trace.blocking_copy_s or 0.0
    read_s = (trace.blocking_copy_exposed_s or 0.0) if to_host_s > held_s / 2 else 0.0
    waits = max(read_s, trace.after_sync_s or 0.0) >= _NOTABLE * (trace.step_s or 0.0)
    emptied = trace.releases_per_step and not trace.uncached_per_step
    return not trace.has_engine and (waits or bool(emptied))


def settings(recording: Recording) -> list[Settings]:
    names = {call.name for call in _WAITS.calls(recording)} & set(_NOT_NEEDED)
    return [{"calls": sorted(names)}] if names else []


def apply(torch: Any, settings: Settings, program: Any) -> None:
    if not program.accelerator.is_available():
        program.refuse("no-gpu-here")

    def make(old: Any) -> Any:
        def does_nothing(*args: Any, **kwargs: Any) -> None:
            program.applied()

        return does_nothing

    program.set_reason("no-call-made")
    for name in settings["calls"]:
        program.replace(program.accelerator.module, name, make)


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return the calls that nobody needs; where there are none, sums that are only shown."""
    removed: list[Edit] = []
    detached: list[Edit] = []
    for call in _WAITS.calls(recording):
        file = call.location.file
        line = call.location.line
        if call.name in settings.get("calls", ()):
            removed.append(RemoveEdit(file=file, line=line, callee=call.name))
        elif call.name == "item" and call.sure and (match := _SUMMED.match(call.text)):
            detached.append(DetachEdit(file=file, line=line, name=match[1], from_item=True))
    # What was removed in the trial, and nothing else.
    return removed if settings.get("calls") else detached


def advice(recording: Recording) -> str | None:
    if recording.trace is None or recording.trace.trains is not False:
        return FIX.permanent_form
    return (
        "results.append(model(x))                   # leave them on the device\n"
        "answers = torch.cat(results).cpu()         # copy once, after the loop"
    )


FIX = FixSpec(
    name="no GPU synchronization",
    treats=("sync-in-step", "outputs-read-each-batch", "allocator-thrash"),
    keeps_results="exactly",
    p_helps=0.5,  # the wait is seen in the loop
    refuses=refuses,
    sentences=_WAITS.sentences
    | {
        "no-gpu-here": "There is no GPU here.",
        "no-call-made": "None of the calls was made.",
        "no-gpu": "The model is on the CPU, where nothing waits for a GPU.",
    },
    touches=synchronization,
    suits=suits,
    advice=advice,
    settings=settings,
    by_hand=lambda recording: not settings(recording),
    apply=apply,
    location=_WAITS.location,
    instruction=_WAITS.instruction,
    edits=edits,
    example=Example(
        code="""
asked = True
if torch.cuda.is_available():
    large, done = torch.ones(8192, 8192, device="cuda"), torch.cuda.Event()
    torch.cuda.current_stream().synchronize()
    for _ in range(20):
        large = large @ large
    done.record()
    torch.cuda.synchronize()
    asked = done.query()
print("waited:", asked)
torch.ones(1, requires_grad=True).sum().backward()
""",
        settings={"calls": ["synchronize", "empty_cache"]},
        needs="cuda",
        without="waited: True",
        with_fix="waited: False",
    ),
)
