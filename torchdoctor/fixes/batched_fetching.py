"""Fetch a batch of a TensorDataset by one index of its tensors, not sample by sample.

## What it does
Where a DataLoader goes through a `TensorDataset` and collates as torch does, takes the rows of each
batch with `tensor[indices]`. Batches, their order and their values stay what they are.

## Why it helps
A batch of 2,048 samples makes thousands of small tensors and stacks them, which takes far longer
than to copy their bytes, and keeps the garbage collector busy.

## Risks
None is known. A sampler or transform of one's own works as before.

## Make it permanent
    from torch.utils.data import BatchSampler, RandomSampler
    sampler = BatchSampler(RandomSampler(data), batch_size, drop_last=False)
    loader = DataLoader(data, sampler=sampler, batch_size=None)  # data[indices] is a batch

## Sources
- PyTorch, disable automatic batching: https://docs.pytorch.org/docs/stable/data.html
"""

from typing import Any

from torchdoctor.edits import BatchSamplerEdit, Edit
from torchdoctor.queries.lookup import training_loaders
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
)

_LEAST_BATCH = 8
_PLAIN = "torch.utils.data.dataset.TensorDataset"


def _loader(recording: Recording) -> LoaderFacts | None:
    for loader in training_loaders(recording):
        if (
            loader.dataset_cls.endswith("TensorDataset")
            and (loader.batch_size or 0) >= _LEAST_BATCH
        ):
            return loader
    return None


def refuses(recording: Recording) -> Evidence | None:
    return None if _loader(recording) else fact("no-tensor-dataset")


def location(recording: Recording) -> Location | None:
    loader = _loader(recording)
    return loader.location if loader is not None else None


def edits(settings: Settings, recording: Recording) -> list[Edit]:
    line = location(recording)
    made = [
        loader for loader in recording.main.loaders if line is not None and loader.location == line
    ]
    if line is None or line.through is not None:
        return []
    if any(
        loader.dataset_cls != _PLAIN or loader.batch_size != made[0].batch_size for loader in made
    ):
        return []  # the line makes another loader besides
    return [BatchSamplerEdit(file=line.file, line=line.line)]


def apply(torch: Any, settings: Settings, program: Any) -> None:
    data = torch.utils.data

    def tensors_of(dataset: Any, indices: Any) -> Any:
        while type(dataset) is data.Subset:
            indices, dataset = [dataset.indices[i] for i in indices], dataset.dataset
        return (dataset.tensors, indices) if type(dataset) is data.TensorDataset else None

    def make(old: Any) -> Any:
        def fetch(self: Any, wanted: Any) -> Any:
            collates = self.collate_fn is data.default_collate
            if not (self.auto_collation and collates and program.usable):
                return old(self, wanted)
            batch = tensors_of(self.dataset, wanted)
            if batch is None:
                return old(self, wanted)
            tensors, indices = batch
            rows = torch.as_tensor(indices)
            program.applied()
            return [tensor[rows] for tensor in tensors]

        return fetch

    program.set_reason("no-tensor-dataset-fetched")
    program.replace(data._utils.fetch._MapDatasetFetcher, "fetch", make)


FIX: FixSpec = FixSpec(
    name="batches by one index",
    treats=("data-wait", "loader-cpu-bound", "gc-pauses"),
    keeps_results="exactly",
    when="between steps",
    p_helps=0.8,
    touches=waits,
    refuses=refuses,
    sentences={
        "no-tensor-dataset": "No TensorDataset feeds the model in batches.",
        "no-tensor-dataset-fetched": "No DataLoader fetched a batch of a TensorDataset.",
    },
    suits=lambda trace: False,
    apply=apply,
    location=location,
    edits=edits,
    instruction=lambda settings, recording: FIX.permanent_form,
    example=Example(
        code="""
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(12, 1), torch.arange(12))
one, noted = torch.utils.data.TensorDataset.__getitem__, []
torch.utils.data.TensorDataset.__getitem__ = lambda s, i: noted.append(i) or one(s, i)
model, total = torch.nn.Linear(1, 1), []
loader = torch.utils.data.DataLoader(torch.utils.data.Subset(data, range(1, 12)), batch_size=5)
for x, y in loader:
    model(x).sum().backward()
    total.append((tuple(x.shape), y.tolist()))
print(type(x).__name__, total[0], total[-1], "one by one:", bool(noted))
""",
        without="Tensor ((5, 1), [1, 2, 3, 4, 5]) ((1, 1), [11]) one by one: True",
        with_fix="Tensor ((5, 1), [1, 2, 3, 4, 5]) ((1, 1), [11]) one by one: False",
    ),
)
