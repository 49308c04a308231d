"""Keep decoded samples in memory after their first use.

## What it does
Keeps a copy of each sample when it is first made, in the training process or in each persistent
worker, and answers later uses with a fresh copy. Samples that differ from use to use are never
kept: eight are made twice and compared byte by byte, in each further epoch four more.

## Why it helps
Reading, decoding and resizing give the same in each epoch: if memory holds it, once is enough.

## Risks
A sample must be the same in every epoch, also in later ones: only the first epochs were compared.
If a comparison fails, the cache is switched off. The workers share the memory limit. Without
persistent workers they end with each epoch, and the cache with them. Random augmentation gains
nothing: cache before it. Within the first epoch no gain shows: there the fix is offered as code.

## Make it permanent
    def __getitem__(self, index):  # _make_sample is __getitem__ as it was
        samples, key = vars(self).setdefault("_samples", {}), int(index)
        if key not in samples:
            samples[key] = self._copy_of(self._make_sample(index))
        return self._copy_of(samples[key])

    def _copy_of(self, sample):  # import copy, torch
        if isinstance(sample, torch.Tensor):
            return sample.clone()
        if type(sample) in (list, tuple):
            return type(sample)(map(self._copy_of, sample))
        if type(sample) is dict:
            return {name: self._copy_of(value) for name, value in sample.items()}
        return copy.deepcopy(sample)
    # Workers need persistent_workers=True, or begin each epoch with no samples.

## Sources
- PyTorch, Map-style datasets: https://docs.pytorch.org/docs/stable/data.html#map-style-datasets
"""

import math
import weakref
from pathlib import Path
from typing import Any

from torchdoctor.edits import Edit, KeptSamplesEdit, StatementEdit
from torchdoctor.edits.calls import loader_location
from torchdoctor.edits.reading import attributes_set, method_of_class
from torchdoctor.fixes._parts import changed_itself, hardly_waits
from torchdoctor.queries.lookup import loader_target, training_loaders
from torchdoctor.queries.touched import waits
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    LoaderFacts,
    Location,
    Recording,
    Settings,
    fact,
    within,
)
from torchdoctor.schema.figures import memory

_MOST_OF_MEMORY = 0.25


def refuses(recording: Recording) -> Evidence | None:
    loaders = training_loaders(recording)
    if not loaders:
        return fact("no-loader")
    loader = loaders[0]
    if loader.iterable:
        return fact("iterable-dataset")
    if loader.num_workers and not loader.persistent_workers:
        return fact("workers-end-with-epochs")
    if why := hardly_waits(recording):
        return why
    check = recording.main.sample_check
    if by_hand(recording) and check is None:
        return fact("first-epoch-alone-unexamined")
    if check is not None and not check.same:
        refused = "first-epoch-alone" if by_hand(recording) else "samples-must-not-be-kept"
        return fact(refused, why=within(check.why or fact("not-the-same-samples")))
    needed = _needed_bytes(loader)
    limit = _limit_bytes(recording)
    if needed is not None and limit is not None and needed > limit:
        return fact("too-large-to-keep", needed_gb=needed / 1e9, most_gb=limit / 1e9)
    return None


def by_hand(recording: Recording) -> bool:
    """Return True if no launch gets to a second use of a sample, so that none can show a gain."""
    loaders = training_loaders(recording)
    if not loaders or loaders[0].iterable:
        return False
    length = loaders[0].dataset_length
    passes = sum(loader.iterators for loader in loaders)
    return passes < 2 and (length is None or loaders[0].samples <= length)


def _needed_bytes(loader: LoaderFacts) -> float | None:
    """Return the bytes of all samples, by the tensors of a batch; None: they are not known."""
    if not loader.batch_tensors or not loader.dataset_length or not loader.batch_size:
        return None
    parts = [tensor.total_bytes for tensor in loader.batch_tensors[0]]
    known_bytes = [part for part in parts if part is not None]
    if len(known_bytes) < len(parts):
        return None
    return sum(known_bytes) / loader.batch_size * loader.dataset_length


def _limit_bytes(recording: Recording) -> int | None:
    machine = recording.environment
    limits = [
        limit
        for limit in (machine.memory_bytes, machine.container.memory_bytes)
        if limit is not None
    ]
    return int(_MOST_OF_MEMORY * min(limits)) if limits else None


def settings(recording: Recording) -> list[Settings]:
    """Return one setting: as much as fits into a quarter of the memory."""
    return [{"limit_bytes": _limit_bytes(recording) or 2**30, **loader_target(recording)}]


class _Cached:
    """Stands in place of the dataset that a loader's fetcher asks."""

    def __init__(self, dataset: Any, cache: Any) -> None:
        self._dataset = dataset
        self._cache = cache
        cache.new_pass()

    def __getitem__(self, index: Any) -> Any:
        return self._cache.get(self._dataset, index)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    limit = int(settings["limit_bytes"])
    chosen: dict[int, tuple[Any, Any]] = {}  # by id of the data set, as long as that lives

    def on_use() -> None:
        program.applied(answered=program.details.get("answered", 0) + 1)

    def on_off(why: Any) -> None:
        program.guarded(program.refuse_for, why)

    def choose(arguments: dict[str, Any]) -> None:
        dataset = arguments["dataset"]
        workers = int(arguments["num_workers"] or 0)
        key = id(dataset)
        if isinstance(dataset, torch.utils.data.IterableDataset) or key in chosen:
            return
        cache = program.sample_cache(limit // max(workers, 1), on_use, on_off)
        if cache.makes_whole_batches(dataset):
            program.set_reason("makes-whole-batches")
            return
        if workers and not arguments["persistent_workers"]:
            program.set_reason("caches-end-with-epochs")
            return
        try:
            alive = weakref.ref(dataset, lambda _: chosen.pop(key, None))
        except TypeError:
            program.set_reason("dataset-is-a-list")
            return
        chosen[key] = alive, cache
        if workers:
            program.applied(in_workers=workers)  # what happens there is not seen from here

    def make(old: Any) -> Any:
        def __init__(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            old(self, dataset, *args, **kwargs)
            choice = chosen.get(id(dataset))
            if choice is not None and choice[1].on:
                self.dataset = _Cached(dataset, choice[1])

        return __init__

    program.set_reason("no-sample-used-twice")
    program.before_loader(choose, settings.get("loader"))
    program.replace(torch.utils.data._utils.fetch._MapDatasetFetcher, "__init__", make)


def _makes_samples(recording: Recording) -> Location | None:
    loaders = training_loaders(recording)
    script = recording.workload.script
    module, _, cls = (loaders[0].dataset_cls if loaders else "").rpartition(".")
    file = script or ""
    if script and module not in ("", "__main__"):
        file = str(Path(file).parent.joinpath(*module.split(".")).with_suffix(".py"))
    line = method_of_class(file, cls, "__getitem__")
    return Location(file=file, line=line) if line is not None else None


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    """Return how the class keeps its samples, where they all fit into memory, in each worker."""
    loaders = training_loaders(recording)
    made = _makes_samples(recording)
    worker_bytes = _needed_bytes(loaders[0]) if loaders else None
    needed = math.inf if worker_bytes is None else worker_bytes * max(loaders[0].num_workers, 1)
    if made is None or made.line is None or needed > int(settings["limit_bytes"]):
        return []
    needs = [
        StatementEdit(file=made.file, statement=f"import {module}") for module in ("copy", "torch")
    ]
    trains = (recording.main.flags.backward_location or made).file
    changed = set[str]().union(*map(attributes_set, {recording.workload.script or trains, trains}))
    return [KeptSamplesEdit(file=made.file, line=made.line, changed=tuple(sorted(changed))), *needs]


def instruction(settings: Settings, recording: Recording) -> str:
    loaders = training_loaders(recording)
    check = recording.main.sample_check
    lines = []
    if by_hand(recording) and check is not None:
        lines = [
            "# Not measured: a launch ends within the first epoch, and this helps from the second",
            f"# on. {check.samples} samples were made twice and were equal byte by byte.",
        ]
    cls = loaders[0].dataset_cls.rpartition(".")[2] if loaders else ""
    lines += [f"# In {cls or 'the data set'}:", FIX.permanent_form]
    needed = _needed_bytes(loaders[0]) if loaders else None
    if loaders and needed is None:
        lines.append("# It has no limit: all decoded samples must fit into memory.")
    elif needed is not None:
        takes = f"{loaders[0].dataset_length} decoded samples take about {memory(needed)}"
        lines.append(f"# All {takes} of memory{' in each worker' * bool(loaders[0].num_workers)}.")
    return "\n".join(lines)


FIX = FixSpec(
    name="cache decoded samples",
    treats=("data-wait", "loader-cpu-bound", "loader-io-bound", "slow-storage", "slow-sample"),
    keeps_results="exactly",
    phases=("data_wait_s", "loader_start_s"),
    touches=waits,
    p_helps=0.6,  # gained in 2 of 4 programs of benchmarks/logs
    setup_s=2.0,  # before it answers any, samples are made as ever, some of them twice, and copied
    fills_in_first_epoch=True,
    offered_untried=False,  # only a run sees whether samples differ between epochs
    refuses=refuses,
    sentences={
        "first-epoch-alone-unexamined": "While it was observed no sample was used twice, as the "
        "first epoch did not end, and whether samples stay the same could not be examined.",
        "first-epoch-alone": "While it was observed no sample was used twice, as the first epoch "
        "did not end. Nor may it be used later. {why:fact}.",
        "not-the-same-samples": "Asked for again it gave other samples.",
        "samples-must-not-be-kept": "Its samples must not be kept. {why:fact}.",
        "too-large-to-keep": "All decoded samples would take about {needed_gb:.2f} GB, more than a "
        "quarter of the memory ({most_gb:.2f} GB).",
        "no-loader": "The loop uses no torch DataLoader, so there are no samples to keep.",
        "iterable-dataset": "The data set is an IterableDataset: its samples have no index to keep "
        "them by.",
        "workers-end-with-epochs": "The loader's workers end with each epoch: it needs "
        "persistent-workers first.",
        "makes-whole-batches": "The data set makes whole batches at once (__getitems__).",
        "caches-end-with-epochs": "Its workers end with each epoch, and their caches with them.",
        "dataset-is-a-list": "The data set is a list or the like: there is nothing to save.",
        "no-sample-used-twice": "No sample was used twice.",
    },
    settings=settings,
    by_hand=by_hand,
    suits=lambda trace: False,
    doubt=lambda recording: changed_itself(recording, "dataset-unchanged-by-cache"),
    apply=apply,
    location=lambda recording: _makes_samples(recording) or loader_location(recording),
    instruction=instruction,
    edits=edits,
    example=Example(
        code="""
from torch.utils.data import DataLoader, Dataset
class Decoded(Dataset):
    made = 0
    def __len__(self):
        return 20
    def __getitem__(self, index):
        Decoded.made += 1
        return torch.full((4,), float(index)), index % 2
loader = DataLoader(Decoded(), batch_size=5, shuffle=True)
model = torch.nn.Linear(4, 1)
seen = 0.0
for epoch in range(5):
    for x, label in loader:
        seen += x.sum().item()
        model(x).sum().backward()
print("seen", seen, "made", Decoded.made, "of 100")
""",
        settings={"limit_bytes": 10**6},
        without="seen 3800.0 made 100 of 100",
        with_fix="seen 3800.0 made 44 of 100",  # 20, 8 of them twice, 4 more in later epochs
    ),
)
