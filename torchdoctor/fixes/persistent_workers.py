"""Keep the loader's worker processes alive between epochs.

## What it does
Sets `persistent_workers=True` of the training DataLoader. If it has no workers yet but epochs are
short, workers and their persistence are tried together.

## Why it helps
Starting a worker takes milliseconds (fork) to seconds (spawn), and each epoch's first batch waits
for it. Persistent workers also keep what the dataset has opened and cached.

## Risks
What the training process changes in the dataset between epochs (a curriculum, an epoch number) no
longer reaches the workers. Their random state goes on. Their memory stays in use between epochs.

## Make it permanent
    loader = DataLoader(..., persistent_workers=True)

## Sources
- PyTorch, DataLoader: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
"""

from typing import Any

from torchdoctor.edits.calls import loader_call, loader_edits, loader_location
from torchdoctor.fixes import loader_workers
from torchdoctor.fixes._parts import changed_itself, hardly_waits
from torchdoctor.queries.lookup import loader_target, training_loaders
from torchdoctor.queries.touched import waits
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact


def refuses(recording: Recording) -> Evidence | None:
    loaders = training_loaders(recording)
    if not loaders:
        return fact("no-loader")
    loader = loaders[0]
    if loader.persistent_workers:
        return fact("persistent-already")
    if len(loaders) > 1:
        return fact("made-anew-each-epoch", location=loader.location)
    if loader.iterators <= 1:
        return fact("iterated-once")
    if loader.iterable and not loader.num_workers:
        return fact("no-workers")
    return None if loader.num_workers else hardly_waits(recording)


def includes(recording: Recording) -> tuple[str, ...]:
    """Return loader-workers if the loader has none: it gets them here as well."""
    loaders = training_loaders(recording)
    return (loader_workers.FIX.ident,) if loaders and not loaders[0].num_workers else ()


def settings(recording: Recording) -> list[Settings]:
    loader = training_loaders(recording)[0]
    more = {} if loader.num_workers else loader_workers.settings(recording)[0]
    return [{**more, **loader_target(recording)}]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    def keep_workers(arguments: dict[str, Any]) -> None:
        iterable = isinstance(arguments["dataset"], torch.utils.data.IterableDataset)
        if arguments["num_workers"] == 0 and not iterable:
            arguments["num_workers"] = int(settings.get("num_workers", 0))
        if arguments["num_workers"] == 0:
            program.set_reason("no-workers")
            return
        arguments["persistent_workers"] = True
        program.applied(num_workers=arguments["num_workers"])

    program.before_loader(keep_workers, settings.get("loader"))


_PERSISTENT = {"persistent_workers": True}

FIX = FixSpec(
    name="persistent loader workers",
    treats=("workers-respawned", "data-wait"),
    keeps_results="within rounding",
    keeps_but="the same samples; with random augmentation other random numbers than before",
    phases=("data_wait_s", "loader_start_s"),
    touches=lambda recording: waits(recording, elsewhere=True),
    p_helps=0.6,  # workers start again each epoch
    prepares_elsewhere=True,
    refuses=refuses,
    sentences={
        "made-anew-each-epoch": "The loader is constructed anew each epoch, and its workers end "
        "with it: construct it once before the loop, with persistent_workers=True[ "
        "({location:place})].",
        "no-loader": "The loop uses no torch DataLoader, so there are no workers to keep.",
        "persistent-already": "The loader's workers already are persistent.",
        "iterated-once": "The loader was iterated once in the observed run: no workers were "
        "started again.",
        "no-workers": "The loader has no worker processes to keep.",
    },
    settings=settings,
    together=loader_workers.together,
    includes=includes,
    suits=lambda trace: False,
    doubt=lambda recording: changed_itself(recording, "dataset-changed-in-kept-workers"),
    apply=apply,
    location=loader_location,
    instruction=lambda settings, recording: loader_call(recording, **settings, **_PERSISTENT),
    edits=lambda settings, recording: loader_edits(recording, **settings, **_PERSISTENT),
    example=Example(
        code="""
import os
from torch.utils.data import DataLoader
def collated(samples):
    return torch.tensor(samples).float().unsqueeze(1), os.getpid()
if __name__ == "__main__":
    model, pids = torch.nn.Linear(1, 1), set()
    loader = DataLoader(range(4), batch_size=2, num_workers=1, collate_fn=collated)
    for epoch in range(3):
        for x, pid in loader:
            pids.add(pid)
            model(x).sum().backward()
    print("worker processes in three epochs:", len(pids))
""",
        without="worker processes in three epochs: 3",
        with_fix="worker processes in three epochs: 1",
    ),
)
