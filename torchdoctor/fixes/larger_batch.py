"""Train with larger batches: fewer, fuller steps.

What it does
------------
Raises `batch_size` of the training DataLoader to two and four times, rounded up to a multiple of
8, and compares the time *per sample*. It changes training, so it is tried only with
`--allow-training-changes`.

Why it helps
------------
A step has costs that do not grow with the batch: Python, launching kernels, the optimizer, the
exchange of gradients. A larger batch spreads them over more samples, and fills processors that a
small batch leaves idle. On tensor cores, sizes that are multiples of 8 (64 on an A100 and later)
use the fast kernels.

Risks
-----
This is other training: fewer steps an epoch, less noise in each gradient, and usually another
learning rate. Up to a critical batch size, larger batches reach the same loss with the same number
of samples; beyond it, additional samples in a batch are wasted. Start from multiplying the
learning rate by the same factor as the batch (SGD) or its square root (Adam), warm it up, and
judge by the validation loss. Memory for activations grows with the batch. Batch normalization
sees other statistics.

Make it permanent
-----------------
    loader = DataLoader(dataset, batch_size=128)          # was 64
    optimizer = torch.optim.SGD(parameters, lr=0.2)       # was 0.1

Sources
-------
- Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017:
  https://arxiv.org/abs/1706.02677
- McCandlish, Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training", 2018:
  https://arxiv.org/abs/1812.06162
- NVIDIA, "Matrix Multiplication Background User's Guide" (sizes on tensor cores):
  https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.edits import Edit
    from torchdoctor.records import Location, Recording

TREATS = ("batch-too-small", "python-overhead", "many-small-kernels", "optimizer-share")
KEEPS_RESULTS = "changes training"
WHEN = "launch"


def refuses(recording: Recording) -> str | None:
    """Why the batch cannot be made larger."""
    from torchdoctor.records.lookup import training_loaders

    loaders = training_loaders(recording)
    if not loaders:
        return "The training loop uses no torch DataLoader, whose batch size could be set."
    if loaders[0].batch_size is None:
        return "The loader gets its batches from a batch sampler or from the dataset itself."
    if not settings(recording):
        return (
            f"The dataset has {loaders[0].dataset_length} samples: too few for batches larger "
            f"than {loaders[0].batch_size}."
        )
    return None


def settings(recording: Recording) -> list[dict[str, Any]]:
    """Twice and four times the batch, multiples of 8, as far as the dataset goes."""
    from torchdoctor.records.lookup import loader_target, training_loaders

    loader = training_loaders(recording)[0]
    today = loader.batch_size or 1
    sizes = [8 * -(-factor * today // 8) for factor in (2, 4)]
    target = loader_target(recording)
    most = loader.dataset_length
    fitting = [n for n in dict.fromkeys(sizes) if n > today and (most is None or n <= most)]
    return [{"batch_size": n, **target} for n in fitting]


def ladder(recording: Recording) -> dict[str, Any]:
    """Up to 16 times as many, in multiples of 8, as far as the data set has so many."""
    from torchdoctor.records.lookup import training_loaders

    loader = training_loaders(recording)[0]
    today = loader.batch_size or 1
    most = 16 * today if loader.dataset_length is None else min(16 * today, loader.dataset_length)
    return {
        "setting": "batch_size",
        "least": 8,
        "most": max(8 * (most // 8), 8),
        "today": today,
        "multiple": 8,
    }


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Set batch_size of the chosen loaders, before they are made."""
    wanted = int(settings["batch_size"])
    only = settings.get("loader")

    def enlarge(arguments: dict[str, Any], ident: int) -> None:
        if only is not None and ident != only:
            return
        if arguments["batch_size"] is None or arguments["batch_sampler"] is not None:
            program.set_reason("The loader gets its batches from elsewhere.")
            return
        arguments["batch_size"] = wanted
        program.applied(batch_size=wanted)

    program.set_reason("No DataLoader that it could change was made.")
    program.before_loader(enlarge)


def location(recording: Recording) -> Location | None:
    """Where the training loader is made."""
    from torchdoctor.edits.calls import loader_location

    return loader_location(recording)


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """The argument to set, and where; and what becomes of the learning rate."""
    from torchdoctor.edits.calls import loader_call
    from torchdoctor.records.lookup import place, training_loaders

    call = loader_call(recording, batch_size=settings["batch_size"])
    loaders, optimizers = training_loaders(recording), recording.main.optimizers
    if not loaders or not loaders[0].batch_size or not optimizers or optimizers[0].lr is None:
        return call + "\nand raise the learning rate with it"
    factor = settings["batch_size"] / loaders[0].batch_size
    name = optimizers[0].cls.rpartition(".")[2]
    how = "in proportion" if name == "SGD" else "by the square root"
    rate = optimizers[0].lr * (factor if name == "SGD" else factor**0.5)
    where = place(recording, optimizers[0].location, "the optimizer")
    return f"{call}\n{where}  {name}(..., lr={rate:.3g})  # a start: raised {how}, then tune it"


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """The loader's argument; the learning rate stays the user's to choose."""
    from torchdoctor.edits.calls import loader_edits

    return loader_edits(recording, batch_size=settings["batch_size"])


EXAMPLE = """
import torch
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
"""
EXAMPLE_SETTINGS = {"batch_size": 16}
EXAMPLE_WITHOUT = "batches: [8, 8, 8, 8]"
EXAMPLE_WITH = "batches: [16, 16]"
