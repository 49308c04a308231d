"""Train with larger batches: fewer, fuller steps.

## What it does
Doubles `batch_size` of the training DataLoader, in multiples of 8, as long as the time *per sample*
falls. The dataset, the measured gradient noise scale and the memory end the search. If a launch
runs out of memory, the search goes on between that size and the largest that fits.

## Why it helps
A step has costs that do not grow with the batch: Python, kernel launches, the optimizer, the
exchange of gradients. A larger batch spreads them over more samples and fills idle processors. On
tensor cores, multiples of 8 (64 on an A100 and later) use the fast kernels.

## Risks
Up to a critical batch size, larger batches need about the same number of samples; beyond it,
additional samples are wasted. The gradient noise scale, which torchdoctor estimates with an
interval, says where that is. Warm the higher learning rate up, and judge by the validation loss.

## Make it permanent
    # It changes training: fewer steps an epoch, each with less noise.
    loader = DataLoader(..., batch_size=2 * batch_size)
    optimizer = torch.optim.SGD(..., lr=2 * lr)  # a start, then tune it; Adam: 2**0.5 * lr

## Sources
- McCandlish et al., An Empirical Model of Large-Batch Training: https://arxiv.org/abs/1812.06162
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

from torchdoctor.edits.calls import loader_call, loader_edits, loader_location
from torchdoctor.queries.gradient_noise import noise_scale
from torchdoctor.queries.lookup import loader_target, place, training_loaders
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Recording,
    Settings,
    fact,
    within,
)

_WORTH = 0.01  # of the time per sample: a doubling that gains less is the last
_MOST_OF_MEMORY = 0.8  # without a GPU: what is beyond would be taken from other programs


class Tried(Protocol):
    """One launch with one size; see `trials.sizes`."""

    settings: Settings
    fits: bool
    seconds: float | None
    peak_memory_bytes: float | None


def refuses(recording: Recording) -> Evidence | None:
    loaders = training_loaders(recording)
    if not loaders:
        return fact("no-loader")
    if loaders[0].batch_size is None:
        return fact("batches-from-elsewhere")
    size = loaders[0].batch_size
    if settings(recording):
        return None
    length = loaders[0].dataset_length
    scale = noise_scale(recording)
    if scale is not None and (length is None or length >= _doubled(size)):
        return fact("beyond-noise-scale", size=size, scale=within(scale.as_fact()))
    return fact("too-few-samples", samples=length, size=size)


def settings(recording: Recording) -> list[Settings]:
    """Return twice the batch, a multiple of 8, if the dataset has so many samples."""
    today = training_loaders(recording)[0].batch_size or 1
    size = _doubled(today)
    most = _most(recording)
    return [{"batch_size": size, **loader_target(recording)}] if size <= most else []


def next_settings(tried: Sequence[Tried], recording: Recording) -> dict[str, Any] | None:
    """Return the next size: double what fits and is faster, then halve the gap to what fails."""
    today = training_loaders(recording)[0].batch_size or 1
    sizes = {int(launch.settings.get("batch_size", today)): launch for launch in tried}
    fitting = [size for size, launch in sizes.items() if launch.fits]
    failed = [size for size, launch in sizes.items() if not launch.fits]
    if not fitting:
        return None
    largest = max(fitting)
    if largest != today:  # it must take less time per sample than the one below it
        before, now = (sizes[size].seconds for size in sorted(fitting)[-2:])
        if before is not None and now is not None and now >= before * (1.0 - _WORTH):
            return None
    if failed:
        size = (largest + min(failed)) // 2 // 8 * 8
        enough = min(failed) - largest <= max(8, largest // 8)
    else:
        size = _doubled(largest)
        enough = False
    fits = size <= _most(recording) and _has_memory(size, sizes, recording)
    if enough or size in sizes or size <= today or not fits:
        return None
    return {"batch_size": size, **loader_target(recording)}


def _doubled(size: int) -> int:
    return 8 * -(-2 * size // 8)


def _most(recording: Recording) -> float:
    """Return the samples of the dataset, or what the gradient noise scale calls useful at most."""
    length = training_loaders(recording)[0].dataset_length
    scale = noise_scale(recording)
    useful = math.inf if scale is None or scale.high is None else scale.high
    return min(math.inf if length is None else length, useful)


def _has_memory(size: int, sizes: dict[int, Tried], recording: Recording) -> bool:
    """Return True if a size fits by what smaller ones took; on a GPU only trying tells."""
    machine = recording.environment
    limits = [limit for limit in (machine.memory_bytes, machine.container.memory_bytes) if limit]
    peaks = sorted((n, peak) for n, launch in sizes.items() if (peak := launch.peak_memory_bytes))
    if recording.has_gpu or not limits or len(peaks) < 2:
        return True
    (n0, bytes0), (n1, bytes1) = peaks[0], peaks[-1]
    each = max(bytes1 - bytes0, 0.0) / (n1 - n0)
    return bytes1 + each * (size - n1) <= _MOST_OF_MEMORY * min(limits)


def note(recording: Recording) -> Evidence | None:
    scale = noise_scale(recording)
    return None if scale is None else fact("noise-scale", scale=within(scale.as_fact()))


def apply(torch: Any, settings: Settings, program: Any) -> None:
    wanted = int(settings["batch_size"])

    def enlarge(arguments: dict[str, Any]) -> None:
        if arguments["batch_size"] is None or arguments["batch_sampler"] is not None:
            program.set_reason("loader-batches-from-elsewhere")
            return
        arguments["batch_size"] = wanted
        program.applied(batch_size=wanted)

    program.before_loader(enlarge, settings.get("loader"))


def instruction(settings: Settings, recording: Recording) -> str:
    call = loader_call(recording, batch_size=settings["batch_size"])
    scale = noise_scale(recording)
    if scale is not None:
        call += f"\n# batches are useful up to the gradient noise scale, {scale.words()}"
    loaders = training_loaders(recording)
    optimizers = recording.main.optimizers
    if not loaders or not loaders[0].batch_size or not optimizers or optimizers[0].lr is None:
        return call + "\nand raise the learning rate with it"
    factor = settings["batch_size"] / loaders[0].batch_size
    name = optimizers[0].cls.rpartition(".")[2]
    how = "in proportion" if name == "SGD" else "by the square root"
    rate = optimizers[0].lr * (factor if name == "SGD" else factor**0.5)
    where = place(recording, optimizers[0].location, "the optimizer")
    return f"{call}\n{where}  {name}(..., lr={rate:.3g})  # a start: raised {how}, then tune it"


FIX = FixSpec(
    name="larger batch",
    treats=("batch-too-small", "python-overhead", "many-small-kernels", "optimizer-share"),
    keeps_results="changes training",
    p_helps=0.6,  # per sample, up to the memory limit
    no_bound="What of a step stays as it is with more samples, one size does not show.",
    refuses=refuses,
    sentences={
        "scale-unknown": "not known (95 %: above {low}, from {gradients} gradients)",
        "scale-above": "about {estimate} samples (95 %: above {low}, from {gradients} gradients)",
        "scale-between": "about {estimate} samples (95 %: {low} to {high}, from {gradients} "
        "gradients)",
        "beyond-noise-scale": "The gradient noise scale is {scale:fact}: of batches larger than "
        "{size}, most of the additional samples are wasted.",
        "too-few-samples": "The dataset has {samples} samples: too few for batches larger than "
        "{size}.",
        "noise-scale": "the gradient noise scale is {scale:fact}",
        "no-loader": "The loop uses no torch DataLoader, whose batch size could be set.",
        "batches-from-elsewhere": "The loader gets its batches from a batch sampler or from the "
        "dataset itself.",
        "loader-batches-from-elsewhere": "The loader gets its batches from elsewhere.",
    },
    settings=settings,
    suits=lambda trace: trace.trains is True,
    next_settings=next_settings,
    note=note,
    apply=apply,
    location=loader_location,
    instruction=instruction,
    edits=lambda settings, recording: loader_edits(recording, batch_size=settings["batch_size"]),
    example=Example(
        code="""
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sizes = []
for (x,) in DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=8):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    sizes.append(len(x))
print("batches:", sizes)
""",
        settings={"batch_size": 16},
        without="batches: [8, 8, 8, 8]",
        with_fix="batches: [16, 16]",
    ),
)
