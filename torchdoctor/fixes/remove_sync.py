"""Stop asking the GPU for a value in every step.

What it does
------------
In the trial, `torch.cuda.empty_cache()` and `torch.cuda.synchronize()` do nothing. A value that the
program reads (`.item()`, `.cpu()`, `print(loss)`) can only be taken out in the source: each such
line is named with its time, and a sum that is only printed is an edit.

Why it helps
------------
The host queues kernels ahead of the GPU. To read a value it waits until the GPU has computed it; by
then the queue is empty, and the GPU waits in turn. `empty_cache` gives memory back to the driver
that the next step has to ask for again.

Risks
-----
None for training. What is printed may come later. Times that the program takes by itself around a
removed `synchronize` no longer mean anything.

Make it permanent
-----------------
    total += loss.detach()                     # sum on the device
    if step % 50 == 0:                         # read now and then
        print(total.item())

Sources
-------
- PyTorch Performance Tuning Guide, "Avoid unnecessary CPU-GPU synchronization":
  https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
- PyTorch documentation, torch.cuda.empty_cache:
  https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
"""

from __future__ import annotations

import re
from typing import Any

from torchdoctor.edits import DetachEdit, Edit, RemoveEdit
from torchdoctor.facts.analysed import calls_of
from torchdoctor.facts.lookup import place
from torchdoctor.words import Recording, TensorCall
from torchdoctor.words.specs import Example, FixSpec

_NOT_NEEDED = ("synchronize", "empty_cache")
_SUMMED = re.compile(r"([A-Za-z_]\w*)\s*\+=.*\.item\(\)")


def refuses(recording: Recording) -> str | None:
    """Return why there is nothing to remove."""
    if not recording.has_gpu:
        return "The model trains on the CPU, where nothing waits for a GPU."
    if not recording.main.analysed_steps:
        return (
            "What waits for the GPU was not looked at: that needs steps after the profiler window."
        )
    if not _waits(recording):
        return "No line of the training loop waits for the GPU."
    return None


def _waits(recording: Recording) -> list[TensorCall]:
    return calls_of(recording, "wait")


def by_hand(recording: Recording) -> bool:
    """Return True if the program needs every value that it waits for."""
    return not any(call.name in _NOT_NEEDED for call in _waits(recording))


def settings(recording: Recording) -> list[dict[str, Any]]:
    """Return the calls that nobody needs."""
    names = {call.name for call in _waits(recording)} & set(_NOT_NEEDED)
    return [{"calls": sorted(names)}] if names else []


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Make the calls return at once."""
    if not torch.cuda.is_available():
        program.refuse("There is no CUDA device here.")

    def make(old: Any) -> Any:
        def does_nothing(*args: Any, **kwargs: Any) -> None:
            program.applied()

        return does_nothing

    program.set_reason("None of the calls came by.")
    for name in settings["calls"]:
        program.replace(torch.cuda, name, make)


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return what to do at each line."""
    lines = []
    for call in _waits(recording):
        where = place(recording, call.location, "where it waits")
        if call.name in _NOT_NEEDED:
            lines.append(f"{where}  remove torch.cuda.{call.name}()")
        elif _SUMMED.match(call.text):
            lines.append(f"{where}  add .detach() instead of .item(); read the sum at the end")
        else:
            name = "print" if call.name in ("__repr__", "__format__") else call.name.strip("_")
            lines.append(f"{where}  {name} waits: do it every 50 steps, or after the loop")
    return "\n".join(lines)


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """Return the calls that nobody needs; where there are none, sums that are only shown."""
    made: list[Edit] = []
    for call in _waits(recording):
        file, line = call.location.file, call.location.line
        if call.name in settings.get("calls", ()):
            made.append(RemoveEdit(file=file, line=line, callee=call.name))
    if settings.get("calls"):
        return made  # what was removed in the trial, and nothing else
    for call in _waits(recording):
        match = _SUMMED.match(call.text)
        if call.name == "item" and call.sure and match:
            file, line = call.location.file, call.location.line
            made.append(DetachEdit(file=file, line=line, name=match[1], from_item=True))
    return made


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("sync-in-step", "allocator-thrash"),
    keeps_results="exactly",
    when="launch",
    p_helps=0.5,  # the wait is seen in the loop
    refuses=refuses,
    settings=settings,
    by_hand=by_hand,
    apply=apply,
    location=lambda recording: next((call.location for call in _waits(recording)), None),
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
import torch

asked = True
if torch.cuda.is_available():
    large = torch.ones(8192, 8192, device="cuda")
    torch.cuda.current_stream().synchronize()
    for _ in range(20):
        large = large @ large
    done = torch.cuda.Event()
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
