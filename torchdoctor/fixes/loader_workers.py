"""Load batches in worker processes, while the model computes.

## What it does
Sets `num_workers` of the training DataLoader: with 0, the default, the model waits for each batch;
with n workers, n processes prepare the next ones meanwhile. torchdoctor tries several numbers.

## Why it helps
Preparation and computation overlap, so a step takes as long as the slower of the two. Where it
computes, more workers than free cores get in each other's way. If it waits for a disk or a network,
far more can pay. If samples cost less than handing them over, no worker at all may be fastest.

## Risks
The samples and their order stay the same. Random augmentation draws other numbers, seeded by
`torch` for each worker. Each worker has its own copy of the dataset: what the dataset changes in
itself stays there. Batches travel through shared memory, which containers limit (`--shm-size`). On
Windows and macOS the script needs `if __name__ == "__main__":` and a dataset that can be pickled.

## Make it permanent
    loader = DataLoader(..., num_workers=4)

    # More than one would each yield every sample of an IterableDataset, unless it shares them out:
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for row in itertools.islice(self.rows(), first, None, step):  # cheap to step over
            yield self.prepare(row)

## Sources
- PyTorch, DataLoader: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
"""

import math
from typing import Any

from torchdoctor.edits import Edit
from torchdoctor.edits.calls import loader_call, loader_edits, loader_location, without_workers
from torchdoctor.fixes._parts import changed_itself, hardly_waits
from torchdoctor.queries import loading, lookup
from torchdoctor.queries.loading import TRACED_WORKERS, traced_workers
from torchdoctor.queries.touched import given_back, several, waits
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    LoaderFacts,
    Recording,
    Settings,
    Touches,
    fact,
)

_IOWAIT = 0.2
_ALMOST = 0.85  # of the workers that would keep up with the model
_STARTED_AGAIN = 0.03  # share of the step
_MOST_SETTINGS = 4
_SHARDED = """\
# More than one would each yield every sample of an IterableDataset, unless it shares them out:
def __iter__(self):
    worker = torch.utils.data.get_worker_info()
    first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
    for row in itertools.islice(self.rows(), first, None, step):  # cheap to step over
        yield self.prepare(row)"""


def refuses(recording: Recording) -> Evidence | None:
    loaders = lookup.training_loaders(recording)
    if not loaders:
        return fact("no-loader")
    loader = loaders[0]
    if loader.num_workers and not _shards(loader):
        does_not = loader.shards_by_worker is False
        ident = "does-not-shard" if does_not else "not-seen-to-shard"
        return fact(ident, dataset=loader.dataset_cls or "The dataset")
    if lookup.batches_on_device(loader):
        return fact("batches-on-gpu")
    return None if _started_again(recording) else hardly_waits(recording)


def doubt(recording: Recording) -> Evidence | None:
    loaders = lookup.training_loaders(recording)
    if not loaders or loaders[0].num_workers:
        return None
    return changed_itself(recording, "dataset-changed-in-workers")


def settings(recording: Recording) -> list[Settings]:
    """Return the numbers of workers, the one that should just keep up with the model first."""
    loader = lookup.training_loaders(recording)[0]
    target = {"loader": loader.ident} if loader.iterable else lookup.loader_target(recording)
    return [{"num_workers": number, **target} for number in _numbers(recording, loader)]


def together(settings: Settings, recording: Recording) -> dict[str, Settings]:
    """Return fewer threads for operators if busy workers leave them too few cores.

    A parallel operator waits for its slowest thread, and that one waits for a worker's core.
    """
    threads = recording.main.flags.num_threads
    cpus = recording.environment.whole_cpus
    if recording.has_gpu or not threads or _waits(recording):
        return {}
    free = max(cpus - settings.get("num_workers", 0), 1)
    return {"cpu-threads": {"num_threads": free}} if free < min(threads, cpus) else {}


def _numbers(recording: Recording, loader: LoaderFacts) -> list[int]:
    """Return at most four numbers of workers to try, most promising first, without today's."""
    if not _shards(loader):
        return [1]  # which repeats nothing
    cpus = recording.environment.whole_cpus
    none = [0] * _may_do_without(recording, loader)
    if lookup.workers_keep_up(recording):
        least = loading.fewest(recording, loader)
        fewer = [n for n in (1, 2, 4) if least <= n < loader.num_workers]
        return [*fewer, 0] if loading.making_s(recording, loader) is None else [*none, *fewer]
    waiting = _waits(recording)
    powers = [2**n for n in range(7)]
    if waiting:
        numbers = [n for n in powers if 2 <= n <= max(8 * cpus, 16)]
    else:
        numbers = sorted({n for n in powers if n < cpus} | {cpus, 2 * cpus})
    numbers = [n for n in numbers if n != loader.num_workers]
    aim = loading.workers_that_keep_up(recording, loader)
    aim = min(max(aim, numbers[0]), numbers[-1] if waiting else cpus)
    # One too few is waited for, one too many hardly costs.
    keeps_up = next(n for n in numbers if n >= _ALMOST * aim)
    numbers.sort(key=lambda n: (n != keeps_up, round(abs(math.log2(n / aim)), 3), -n))
    return [*none, *numbers][:_MOST_SETTINGS]


def _shards(loader: LoaderFacts) -> bool:
    """Return True if several workers yield each sample once."""
    return not loader.iterable or loader.shards_by_worker is True


def _started_again(recording: Recording) -> bool:
    return (lookup.respawn_share(recording) or 0.0) >= _STARTED_AGAIN


def _may_do_without(recording: Recording, loader: LoaderFacts) -> bool:
    """Return True if the training process may make batches faster than it waits for them."""
    steps = recording.steps
    own_s = loading.making_s(recording, loader)
    if not loader.num_workers or steps is None or own_s is None:
        return False
    waits_s = steps.data_wait_s + steps.loader_start_s
    return own_s < waits_s and (_started_again(recording) or not _waits(recording))


def ladder(recording: Recording) -> dict[str, Any]:
    """Return the range to search: twice the CPUs, or more if the workers wait."""
    loader = lookup.training_loaders(recording)[0]
    cpus = recording.environment.whole_cpus
    most = max(8 * cpus, 16) if _waits(recording) else 2 * cpus
    most = most if _shards(loader) else 1
    return {"setting": "num_workers", "least": 1, "most": most, "today": loader.num_workers}


def _waits(recording: Recording) -> bool:
    """Return True if preparing a batch waits (disk, network, sleep) instead of computing."""
    if loading.untold_wait(recording) is not None or loading.waiting_loader(recording) is None:
        return False  # more workers than cores for what may compute are dear
    busy = lookup.loader_cpu_share(recording)
    if busy is not None and busy < loading.MOSTLY_WAITING:
        return True
    is_measured = busy is not None and not lookup.training_loaders(recording)[0].num_workers
    return not is_measured and (recording.sensors.iowait_share or 0.0) > _IOWAIT


def touches(recording: Recording) -> Touches:
    return several(waits(recording, elsewhere=True), given_back(recording))


def apply(torch: Any, settings: Settings, program: Any) -> None:
    wanted, only = int(settings["num_workers"]), settings.get("loader")

    def set_workers(arguments: dict[str, Any]) -> None:
        dataset = arguments["dataset"]
        if only is None and isinstance(dataset, torch.utils.data.IterableDataset):
            return
        held: Any = getattr(program.innermost(dataset), "tensors", ())
        devices = [getattr(t, "device", None) for t in held] if type(held) in (tuple, list) else []
        if any(getattr(device, "type", "cpu") == "cuda" for device in devices):
            program.refuse("tensors-on-gpu")
        arguments["num_workers"] = wanted
        if not wanted:  # torch refuses these without workers
            none = {"prefetch_factor": None, "multiprocessing_context": None}
            arguments.update(none, persistent_workers=False, timeout=0)
        program.applied(num_workers=wanted)

    program.before_loader(set_workers, only, with_second=True)


def advice(recording: Recording) -> str:
    """Return code for traces, which tell neither the machine's cores nor what the dataset does."""
    evidence = traced_workers(recording)
    if evidence is not None:
        workers = evidence.values.get("workers")
        number = "..." if workers is None else 2 * workers
        sentence = TRACED_WORKERS[evidence.fact].format(workers=workers)
        return (
            f"# {sentence}\n"
            f"loader = DataLoader(..., num_workers={number})  # more, if cores are free\n"
            "# If none are free, make each batch cheaper to prepare."
        )
    return (
        "loader = DataLoader(..., num_workers=4)\n"
        "# 4 is only where to start: the trace does not hold the machine's cores. "
        "`torchdoctor run` tries several."
    )


def instruction(settings: Settings, recording: Recording) -> str:
    call = loader_call(recording, num_workers=settings["num_workers"])
    if not _shards(lookup.training_loaders(recording)[0]):
        return f"{call}\n{_SHARDED}"
    if settings["num_workers"]:
        return call
    of_workers = "persistent_workers, prefetch_factor, timeout and multiprocessing_context"
    return f"{call}\n# without {of_workers}, where it has them"


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    if not settings["num_workers"]:
        return without_workers(recording)
    return loader_edits(recording, num_workers=settings["num_workers"])


def says(settings: Settings) -> str | None:
    """Return what a change to no workers does, which is the reverse of the page's title."""
    if settings.get("num_workers") != 0:
        return None
    return "Load batches in the training process, without workers."


FIX = FixSpec(
    name="loader workers",
    treats=(
        "data-wait",
        "loader-cpu-bound",
        "loader-io-bound",
        "batch-transfer",
        "worker-count",
        "workers-respawned",
        "slow-sample",
    ),
    keeps_results="within rounding",
    keeps_but="the same samples; with random augmentation other random numbers than before",
    phases=("data_wait_s", "loader_start_s"),
    touches=touches,
    needs_free_cpus=True,
    when="between steps",
    p_helps=0.7,  # the loader is waited for
    by_second_loader=True,
    prepares_elsewhere=True,
    refuses=refuses,
    sentences={
        "does-not-shard": "{dataset} does not shard itself by worker, so each would yield every "
        "sample again: share them out by torch.utils.data.get_worker_info() in its __iter__.",
        "not-seen-to-shard": "{dataset} was not seen to shard itself by worker, so each would "
        "yield every sample again: share them out by torch.utils.data.get_worker_info() in its "
        "__iter__.",
        "no-loader": "The loop uses no torch DataLoader, so there are no workers to start.",
        "batches-on-gpu": "The batches already lie on the GPU, where worker processes cannot make "
        "them.",
        "tensors-on-gpu": "The dataset's tensors lie on the GPU: workers cannot share them.",
    },
    settings=settings,
    says=says,
    together=together,
    ladder=ladder,
    doubt=doubt,
    apply=apply,
    location=loader_location,
    advice=advice,
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
import os
from torch.utils.data import DataLoader
def collated(samples):
    return torch.tensor(samples).float().unsqueeze(1), os.getpid()
if __name__ == "__main__":
    model, pids = torch.nn.Linear(1, 1), set()
    for x, pid in DataLoader(range(8), batch_size=2, collate_fn=collated):
        pids.add(pid)
        model(x).sum().backward()
    print("loaded elsewhere:", os.getpid() not in pids, "processes:", len(pids))
""",
        settings={"num_workers": 2},
        without="loaded elsewhere: False processes: 1",
        with_fix="loaded elsewhere: True processes: 2",
    ),
)
