"""Keep the loader's worker processes alive between epochs.

What it does
------------
Sets `persistent_workers=True` of the training DataLoader. Without it, every epoch starts all worker
processes anew. If the loader has no workers yet but epochs are short, workers and their persistence
are tried together.

Why it helps
------------
Starting a worker takes milliseconds (fork) to seconds (spawn), and the first batch of each epoch
waits until the queues are filled. Persistent workers also keep what the dataset has opened and
cached.

Risks
-----
Samples and their order stay the same. What the training process changes in the dataset between
epochs (a curriculum, an epoch number) no longer reaches the workers. Their random state goes on
instead of being seeded anew, so random augmentation draws other numbers. Their memory stays in use
between epochs.

Make it permanent
-----------------
    loader = DataLoader(..., persistent_workers=True)

Sources
-------
- PyTorch documentation, torch.utils.data.DataLoader, `persistent_workers`:
  https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
"""

from __future__ import annotations

from typing import Any

from torchdoctor.edits.calls import loader_call, loader_edits, loader_location
from torchdoctor.facts.lookup import (
    changes_itself,
    data_wait_share,
    loader_target,
    place,
    training_loaders,
)
from torchdoctor.fixes import loader_workers
from torchdoctor.fixes.loader_workers import worker_numbers
from torchdoctor.words import Recording
from torchdoctor.words.specs import Example, FixSpec


def refuses(recording: Recording) -> str | None:
    """Return why keeping workers alive cannot apply or cannot gain."""
    loaders = training_loaders(recording)
    if not loaders:
        return "The training loop uses no torch DataLoader, so there are no workers to keep."
    loader = loaders[0]
    if loader.persistent_workers:
        return "The loader's workers already are persistent."
    if len(loaders) > 1:
        where = place(recording, loader.location, "where it is made")
        return (
            "The loader is constructed anew each epoch, and its workers end with it: construct it "
            f"once before the loop, with persistent_workers=True ({where})."
        )
    if loader.iterators <= 1:
        return "The loader was iterated once in the observed run: no workers were started again."
    if loader.num_workers == 0:
        if loader.iterable:
            return "The loader has no worker processes to keep."
        share = data_wait_share(recording)
        if share is not None and share < 0.01:
            return "The loader has no worker processes, and the step hardly waits for data."
    return None


def includes(recording: Recording) -> tuple[str, ...]:
    """Return loader-workers if the loader has none: it gets them here as well."""
    loaders = training_loaders(recording)
    return ("loader-workers",) if loaders and not loaders[0].num_workers else ()


def doubt(recording: Recording) -> str | None:
    """Return what the dataset changes in itself, which persistent workers would not forget."""
    loaders = training_loaders(recording)
    changes = changes_itself(recording)
    if changes is None or not loaders[0].num_workers:
        return loader_workers.doubt(recording)
    return (
        f"{changes}: persistent workers would keep their changed copies, where now each epoch "
        "begins with the main process's."
    )


def settings(recording: Recording) -> list[dict[str, Any]]:
    """Return the loader's own number of workers; where it has none, the one that should keep up."""
    loader = training_loaders(recording)[0]
    target = loader_target(recording)
    if loader.num_workers:
        return [target]
    return [{"num_workers": worker_numbers(recording, loader)[0], **target}]


def together(settings: dict[str, Any], recording: Recording) -> dict[str, dict[str, Any]]:
    """Return the same company as workers alone have."""
    return loader_workers.together(settings, recording)


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Set persistent_workers of the chosen loaders, before they are made."""
    only = settings.get("loader")

    def keep_workers(arguments: dict[str, Any], ident: int) -> None:
        if only is not None and ident != only:
            return
        iterable = isinstance(arguments["dataset"], torch.utils.data.IterableDataset)
        if "num_workers" in settings and arguments["num_workers"] == 0 and not iterable:
            arguments["num_workers"] = int(settings["num_workers"])
        if arguments["num_workers"] == 0:
            program.set_reason("The loader has no worker processes to keep.")
            return
        arguments["persistent_workers"] = True
        program.applied(num_workers=arguments["num_workers"])

    program.set_reason("No DataLoader that it could change was made.")
    program.before_loader(keep_workers)


def _keywords(settings: dict[str, Any]) -> dict[str, Any]:
    workers = {"num_workers": settings["num_workers"]} if "num_workers" in settings else {}
    return {**workers, "persistent_workers": True}


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("workers-respawned", "data-wait"),
    keeps_results="within rounding",
    keeps_but="the same samples; with random augmentation other random numbers than before",
    phases=("data_wait_s", "loader_start_s"),
    when="launch",
    p_helps=0.6,  # workers start again each epoch
    prepares_elsewhere=True,
    refuses=refuses,
    settings=settings,
    together=together,
    includes=includes,
    suits=lambda trace: False,
    doubt=doubt,
    apply=apply,
    location=loader_location,
    instruction=lambda settings, recording: loader_call(recording, **_keywords(settings)),
    edits=lambda settings, recording: loader_edits(recording, **_keywords(settings)),
    example=Example(
        code="""
import os

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([float(index)]), os.getpid()


if __name__ == "__main__":
    model = torch.nn.Linear(1, 1)
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1)
    pids = set()
    for epoch in range(3):
        for x, pid in loader:
            pids.update(pid.tolist())
            model(x).sum().backward()
    print("worker processes in three epochs:", len(pids))
""",
        without="worker processes in three epochs: 3",
        with_fix="worker processes in three epochs: 1",
    ),
)
