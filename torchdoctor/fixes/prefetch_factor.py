"""Let each loader worker prepare more batches ahead.

## What it does
Raises `prefetch_factor` of the training DataLoader: the batches that each worker may be ahead.

## Why it helps
A queue evens out batches that take unequally long, such as those with one large image or cold file.
It cannot help workers that are too slow on average: those need company (`loader-workers`).

## Risks
Up to `prefetch_factor` x `num_workers` batches lie in shared memory (pinned once handed over).

## Make it permanent
    loader = DataLoader(..., prefetch_factor=4)

## Sources
- PyTorch, DataLoader: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
"""

from typing import Any

from torchdoctor.edits.calls import loader_call, loader_edits, loader_location
from torchdoctor.fixes._parts import hardly_waits
from torchdoctor.queries.lookup import loader_target, training_loaders, workers_keep_up
from torchdoctor.queries.touched import waits
from torchdoctor.schema import Evidence, Example, FixSpec, Recording, Settings, fact

_DEFAULT = 2  # DataLoader's own, where workers are used


def refuses(recording: Recording) -> Evidence | None:
    loaders = training_loaders(recording)
    if not loaders:
        return fact("no-loader")
    if loaders[0].num_workers == 0:
        return fact("no-workers")
    if workers_keep_up(recording):
        return fact("batches-lie-ready")
    if not settings(recording):
        return fact("ahead-already", batches=loaders[0].prefetch_factor)
    return hardly_waits(recording)


def settings(recording: Recording) -> list[Settings]:
    today = training_loaders(recording)[0].prefetch_factor
    target = loader_target(recording)
    return [{"prefetch_factor": n, **target} for n in (4, 8) if n > (today or _DEFAULT)]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    wanted = int(settings["prefetch_factor"])

    def prefetch(arguments: dict[str, Any]) -> None:
        if arguments["num_workers"] == 0:
            program.set_reason("no-workers-to-prepare")
            return
        arguments["prefetch_factor"] = wanted
        program.applied(prefetch_factor=wanted)

    program.before_loader(prefetch, settings.get("loader"), with_second=True)


FIX = FixSpec(
    name="more batches ahead",
    treats=("data-wait", "slow-sample", "worker-imbalance"),
    keeps_results="exactly",
    phases=("data_wait_s", "loader_start_s"),
    touches=waits,
    needs_free_cpus=True,
    when="between steps",
    p_helps=0.2,
    by_second_loader=True,
    refuses=refuses,
    sentences={
        "ahead-already": "Each worker already prepares {batches} batches ahead.",
        "no-loader": "The loop uses no torch DataLoader, so nothing is prefetched.",
        "no-workers": "The loader has no worker processes, and only those prepare batches ahead.",
        "batches-lie-ready": "A batch mostly lies ready: preparing more ahead would change "
        "nothing.",
        "no-workers-to-prepare": "The loader has no worker processes to prepare batches ahead.",
    },
    settings=settings,
    suits=lambda trace: False,
    apply=apply,
    location=loader_location,
    instruction=lambda settings, recording: loader_call(recording, **settings),
    edits=lambda settings, recording: loader_edits(recording, **settings),
    example=Example(
        code="""
import multiprocessing, time
from torch.utils.data import DataLoader
asked = multiprocessing.Value("i", 0)
def counted(samples):
    asked.value += 1
    return torch.tensor(samples).float()
if __name__ == "__main__":
    model, before = torch.nn.Linear(1, 1), -1
    batches = iter(DataLoader(range(12), num_workers=1, collate_fn=counted))
    model(next(batches)).sum().backward()
    while before != asked.value:  # until the worker has filled its queue and rests
        before = asked.value
        time.sleep(0.5)
    print("batches prepared ahead:", before - 1)
""",
        settings={"prefetch_factor": 4},
        without="batches prepared ahead: 2",
        with_fix="batches prepared ahead: 4",
    ),
)
