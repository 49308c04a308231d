"""Step once for several small batches, where memory stops the batch.

## What it does
It names the lines, and what to write there: half the batch, and a step at every second one.

## Why it helps
Gradients add up between steps. Two backward passes of 32 samples give the gradient of one batch of
64 and need the activations of 32. So the batch that training wants does not have to fit into memory
at once, and with DistributedDataParallel the gradients are exchanged less often.

## Risks
With batch normalization the statistics are those of the small batches. A loss that is a mean has to
be divided by the number of batches. One large batch, where it fits, is faster.

## Make it permanent
    for number, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / 2
        loss.backward()
        if number % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()

## Sources
- PyTorch, "Gradient accumulation": https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from torchdoctor.queries.hardware import memory_is_short
from torchdoctor.queries.lookup import place, training_loaders
from torchdoctor.schema import Evidence, FixSpec, Recording, Settings, fact, on_gpu, process


def refuses(recording: Recording) -> Evidence | None:
    steps = recording.steps
    if not memory_is_short(recording):
        return fact("memory-suffices")
    if steps is not None and steps.backwards_per_step > steps.optimizer_steps_per_step:
        return fact("accumulates-already")
    return None


def instruction(settings: Settings, recording: Recording) -> str:
    loaders = training_loaders(recording)
    size = loaders[0].batch_size if loaders else None
    half = f"batch_size={size // 2}" if size and size > 1 else "half the batch size"
    where = place(recording, recording.main.flags.backward_location, "the backward pass")
    return (
        f"{half} in the loader, then\n"
        f"{where}  (loss / 2).backward()\n"
        "if number % 2 == 1:  # step and zero_grad at every second batch\n"
        "    optimizer.step(); optimizer.zero_grad()"
    )


_FULL = {
    **on_gpu("A100", memory_bytes=100),
    "sensors": {"gpu_memory_peak_bytes": 95},
    **process(loaders=[{"ident": 0, "batch_size": 64, "batches": 9}]),
}

FIX = FixSpec(
    name="gradient accumulation",
    treats=("memory-near-limit",),
    keeps_results="changes training",
    untried="it splits the training loop's own batch, which only its source can.",
    no_bound="It saves memory, and divides a step into several.",
    refuses=refuses,
    sentences={
        "memory-suffices": "Memory does not stop the batch: a larger one is faster than "
        "accumulating.",
        "accumulates-already": "The program accumulates gradients already.",
    },
    instruction=instruction,
    offers=[(_FULL, "batch_size=32")],
    refusals=[
        ({"sensors": {"gpu_memory_peak_bytes": 5}}, "memory-suffices"),
        ({**_FULL, "steps": {"backwards_per_step": 4.0}}, "accumulates-already"),
    ],
)
