"""Let each loader worker prepare more batches ahead.

What it does
------------
Raises `prefetch_factor` of the training DataLoader, the number of batches that each worker may
have ready or in preparation, from its default of 2.

Why it helps
------------
A queue evens out batches that take unequally long. Where one slow sample (a large image, a cold
file) holds up its batch, a queue of two batches a worker runs dry and the step waits although the
workers are fast enough on average. It cannot help workers that are too slow on average: those need
company (`loader-workers`).

Risks
-----
None for the result: the same batches in the same order. Memory: up to `prefetch_factor` x
`num_workers` batches lie in shared memory (and in pinned memory once they are handed over).

Make it permanent
-----------------
    loader = DataLoader(..., prefetch_factor=4)

Sources
-------
- PyTorch documentation, torch.utils.data.DataLoader, `prefetch_factor`:
  https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
"""

from __future__ import annotations

from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.calls import loader_call, loader_edits, loader_location
from torchdoctor.facts.lookup import (
    data_wait_share,
    loader_target,
    training_loaders,
    workers_keep_up,
)
from torchdoctor.words import Recording
from torchdoctor.words.specs import Example, FixSpec

_DEFAULT = 2  # DataLoader's own, where workers are used
_WORTH_TRYING = (4, 8)


def refuses(recording: Recording) -> str | None:
    """Return why a longer queue cannot apply or cannot gain."""
    loaders = training_loaders(recording)
    if not loaders:
        return "The training loop uses no torch DataLoader, so nothing is prefetched."
    if loaders[0].num_workers == 0:
        return "The loader has no worker processes, and only those prepare batches ahead."
    share = data_wait_share(recording)
    if share is not None and share < 0.01:
        return f"The step waits for data only {100 * share:.1f} % of its time."
    if workers_keep_up(recording):
        return (
            "Where the step waits, a batch mostly lies ready: preparing more ahead would change "
            "nothing."
        )
    if not settings(recording):
        return f"Each worker already prepares {loaders[0].prefetch_factor} batches ahead."
    return None


def settings(recording: Recording) -> list[dict[str, Any]]:
    """Return longer queues than today's."""
    today = training_loaders(recording)[0].prefetch_factor or _DEFAULT
    target = loader_target(recording)
    return [{"prefetch_factor": n, **target} for n in _WORTH_TRYING if n > today]


def ladder(recording: Recording) -> dict[str, Any]:
    """Return the range to search: up to 32 batches a worker, which cost memory."""
    today = training_loaders(recording)[0].prefetch_factor or _DEFAULT
    return {"setting": "prefetch_factor", "least": 1, "most": max(32, today), "today": today}


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Set prefetch_factor of the chosen loaders, before they are made."""
    wanted = int(settings["prefetch_factor"])
    only = settings.get("loader")

    def prefetch(arguments: dict[str, Any], ident: int) -> None:
        if only is not None and ident != only:
            return
        if arguments["num_workers"] == 0:
            program.set_reason("The loader has no worker processes to prepare batches ahead.")
            return
        arguments["prefetch_factor"] = wanted
        program.applied(prefetch_factor=wanted)

    program.set_reason("No DataLoader that it could change was made.")
    program.before_loader(prefetch, with_second=True)


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return the argument to set, and where."""
    return loader_call(recording, prefetch_factor=settings["prefetch_factor"])


def edits(settings: dict[str, Any], recording: Recording) -> list[Edit]:
    """Return the same as a source edit; none if the place is not known."""
    return loader_edits(recording, prefetch_factor=settings["prefetch_factor"])


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("data-wait", "slow-sample", "worker-imbalance"),
    keeps_results="exactly",
    phases=("data_wait_s", "loader_start_s"),
    when="between steps",
    p_helps=0.2,
    by_second_loader=True,
    refuses=refuses,
    settings=settings,
    ladder=ladder,
    suits=lambda trace: False,
    apply=apply,
    location=loader_location,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, asked):
        self.asked = asked

    def __len__(self):
        return 12

    def __getitem__(self, index):
        with self.asked.get_lock():
            self.asked.value += 1
        return torch.tensor([float(index)])


if __name__ == "__main__":
    import multiprocessing
    import time

    asked = multiprocessing.Value("i", 0)
    model = torch.nn.Linear(1, 1)
    batches = iter(DataLoader(Numbers(asked), batch_size=1, num_workers=1))
    model(next(batches)).sum().backward()
    seen = -1
    while seen != asked.value:  # until the worker has filled its queue and rests
        seen = asked.value
        time.sleep(0.5)
    print("batches prepared ahead:", asked.value - 1)
""",
        settings={"prefetch_factor": 4},
        without="batches prepared ahead: 2",
        with_fix="batches prepared ahead: 4",
    ),
)
