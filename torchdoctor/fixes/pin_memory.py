"""Page-locked batches, copied to the GPU while it computes.

## What it does
Sets `pin_memory=True` of the training DataLoader, and makes the copies of its pinned batches to the
GPU (`Tensor.to`, `Tensor.cuda`) non-blocking. Copies back from the GPU stay as they are.

## Why it helps
The GPU cannot read ordinary memory: the driver first copies such a tensor into a page-locked
buffer, in pieces, while the program waits. The GPU's copy engine reads pinned memory at the full
speed of the bus, and with `non_blocking=True` the program prepares the next work meanwhile.

## Risks
Code that changes a batch in place on the CPU right after copying it must synchronise first. Pinned
memory cannot be swapped out, and pinning takes a thread of the training process.

## Make it permanent
    loader = DataLoader(..., pin_memory=True)
    for x, y in loader:
        x = x.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)

## Sources
- PyTorch: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

import functools
from typing import Any

from torchdoctor.edits import Edit, NonBlockingEdit
from torchdoctor.edits.calls import loader_call, loader_edits, loader_location, trainer_call
from torchdoctor.queries.lookup import batches_on_device, loader_target, training_loaders
from torchdoctor.queries.touched import pinned_copies
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Recording,
    Settings,
    TraceStatistics,
    fact,
)

_WORTH = 0.005  # of the step
_MARK = "_torchdoctor_pinned_by_loader"


def refuses(recording: Recording) -> Evidence | None:
    if not recording.has_gpu:
        return fact("no-gpu")
    loaders = training_loaders(recording)
    if not loaders:
        return fact("no-loader")
    if batches_on_device(loaders[0]):
        return fact("batches-on-gpu")
    steps = recording.steps
    trace = recording.trace
    pageable = steps.pageable_copies_per_step if steps is not None else None
    blocking = steps is not None and bool(steps.blocking_copies_per_step)
    if loaders[0].pin_memory and pageable == 0 and not blocking:
        return fact("pinned-already")
    if trace is not None and _hardly_held(trace) and not blocking:
        return fact("copies-hardly-matter")
    return None


def _hardly_held(trace: TraceStatistics) -> bool:
    """Return True if a trace shows that copies hold the host for next to nothing."""
    waits_s = trace.pageable_wait_s
    step_s = trace.step_s
    return waits_s is not None and step_s is not None and waits_s < _WORTH * step_s


def apply(torch: Any, settings: Settings, program: Any) -> None:
    accelerator = program.accelerator
    if not accelerator.built:
        program.refuse("torch-for-cpu-alone")

    def pin(arguments: dict[str, Any]) -> None:
        arguments["pin_memory"] = True

    def check() -> None:
        # Not earlier: asking starts the CUDA driver, which a program that forks may not want.
        if not accelerator.is_available():
            program.refuse("no-gpu-to-copy-to")

    def marking(old: Any) -> Any:
        def pin_memory(data: Any, *args: Any, **kwargs: Any) -> Any:
            pinned = old(data, *args, **kwargs)
            if isinstance(pinned, torch.Tensor):
                setattr(pinned, _MARK, True)
            return pinned

        return pin_memory

    def not_blocking(old: Any) -> Any:
        @functools.wraps(old)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            # Given by position it would be the second argument or the third.
            is_ours = hasattr(self, _MARK) and len(args) < 2 and self.device.type == "cpu"
            moved = old(self, *args, **(kwargs | {"non_blocking": True} if is_ours else kwargs))
            if is_ours and moved.device.type == accelerator.type:
                program.applied()
            return moved

        return method

    program.set_reason("no-pinned-batch-copied")
    program.at_first_batch(check, lambda: None)
    program.before_loader(pin, settings.get("loader"), with_second=True)
    # The recursion of torch's own function goes through its module: every leaf passes here.
    program.replace(torch.utils.data._utils.pin_memory, "pin_memory", marking)
    for name in ("to", accelerator.type):
        program.replace(torch.Tensor, name, not_blocking)


def instruction(settings: Settings, recording: Recording) -> str:
    call = loader_call(recording, pin_memory=True)
    if trainer_call(recording, {"pin_memory": True}) is not None:
        return call  # which copies the batches itself
    return f"{call}\nand copy each batch with  x = x.to(device, non_blocking=True)"


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return the loader's argument and the copies in the loop; none if a library makes these."""
    calls = [passes.forward[0] for passes in recording.main.passes if passes.forward]
    pinned = loader_edits(recording, pin_memory=True)
    if not calls or not pinned:
        return []
    first = min(calls, key=lambda where: where.line)
    return [*pinned, NonBlockingEdit(file=first.file, line=first.line)]


def advice(recording: Recording) -> str | None:
    """Return the loader's argument, or where the trace has no loader the copy of a tensor."""
    if recording.shares.data_loader:
        return FIX.permanent_form
    return "x = x.pin_memory().to(device, non_blocking=True)   # one buffer, used again, is best"


FIX = FixSpec(
    name="pinned memory",
    also_known_as=("non-blocking-copy",),
    treats=("memcpy-share", "pageable-copies", "copy-without-pinning"),
    keeps_results="exactly",
    when="between steps",
    p_helps=0.4,
    by_second_loader=True,
    refuses=refuses,
    sentences={
        "no-gpu": "The model is on no GPU, and pinned memory only helps copies to one.",
        "no-loader": "The loop uses no torch DataLoader, whose batches could be pinned.",
        "batches-on-gpu": "The loader's batches already lie on the GPU.",
        "pinned-already": "Batches are already pinned and copied without blocking.",
        "copies-hardly-matter": "Copies from memory that is not pinned hold the host for under 0.5 "
        "% of the step.",
        "torch-for-cpu-alone": "This torch was built for the CPU alone: there is no GPU to copy "
        "to.",
        "no-gpu-to-copy-to": "There is no GPU to copy to.",
        "no-pinned-batch-copied": "No batch of a pinned loader was copied to the GPU.",
    },
    settings=lambda recording: [loader_target(recording)],
    touches=pinned_copies,
    suits=lambda trace: trace.has_device and not _hardly_held(trace),
    apply=apply,
    advice=advice,
    location=loader_location,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
from torch.utils.data import DataLoader, TensorDataset
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 1).to(device)
pinned = []
for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4):
    pinned.append(torch.cuda.is_available() and x.is_pinned())
    model(x.to(device)).sum().backward()
print("pinned:", pinned)
""",
        needs="cuda",
        without="pinned: [False, False]",
        with_fix="pinned: [True, True]",
    ),
)
