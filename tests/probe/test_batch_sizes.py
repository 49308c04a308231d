"""How many samples a batch has, where its tensors are not one row for each."""

from __future__ import annotations

import textwrap
from pathlib import Path

from probed import run_probed

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
"""

# Nodes of all graphs below each other, as torch_geometric's batches have them.
GRAPHS = """
class Graphs:
    def __init__(self, graphs):
        sizes = [len(x) for x, _ in graphs]
        self.x = torch.cat([x for x, _ in graphs])
        self.batch = torch.repeat_interleave(torch.arange(len(graphs)), torch.tensor(sizes))
        self.y = torch.tensor([y for _, y in graphs])
    def keys(self):
        return ["x", "batch", "y"]
    def values(self):
        return [self.x, self.batch, self.y]
    def __getitem__(self, name):
        return getattr(self, name)
data = [(torch.randn(20 + i % 7, 4), float(i % 2)) for i in range(14)]
model = nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for graphs in DataLoader(data, batch_size=4, collate_fn=Graphs):
    o.zero_grad(); (model(graphs.x).mean() - graphs.y.mean()).square().backward(); o.step()
"""

# Images of several sizes in a tuple, as torchvision's detection models take them.
IMAGES = """
data = [(torch.randn(3, 8 + i % 3, 8), {"boxes": torch.zeros(i % 5, 4)}) for i in range(14)]
model = nn.Conv2d(3, 4, 3)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for images, targets in DataLoader(data, batch_size=4, collate_fn=lambda x: tuple(zip(*x))):
    o.zero_grad(); sum(model(x[None]).mean() for x in images).backward(); o.step()
"""

# Nothing is put together, as detectron2's models take it.
LISTS = """
data = [{"image": torch.randn(3, 8 + i % 3, 8), "label": i % 5} for i in range(14)]
model = nn.Conv2d(3, 4, 3)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(data, batch_size=4, collate_fn=list):
    o.zero_grad(); sum(model(x["image"][None]).mean() for x in batch).backward(); o.step()
"""

# As many fields as the loader's batches have samples, and a last batch of one.
FIELDS = """
data = [(torch.randn(4), torch.randn(1), torch.randn(1)) for i in range(7)]
model = nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y, w in DataLoader(data, batch_size=3):
    o.zero_grad(); ((model(x) - y) * w).square().mean().backward(); o.step()
"""

# The whole batch is one item of the dataset: its tensors say how large it is.
READY = """
data = [(torch.randn(6, 4), torch.randn(6, 1), torch.randn(6, 1)) for i in range(4)]
model = nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y, w in DataLoader(data, batch_size=1, collate_fn=lambda x: x[0]):
    o.zero_grad(); ((model(x) - y) * w).square().mean().backward(); o.step()
"""


# Two dictionaries of tensors, and a last batch of as many samples as there are dictionaries.
TWO_DICTS = """
data = [(torch.randn(4), float(i % 2)) for i in range(34)]
def collate(b):
    return {"x": torch.stack([x for x, _ in b])}, {"y": torch.tensor([y for _, y in b])}
model = nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, SIZES, collate_fn=collate)
for epoch in range(10):
    for x, y in loader:
        o.zero_grad(); (model(x["x"])[:, 0] - y["y"]).square().mean().backward(); o.step()
"""
SHORT_LAST = TWO_DICTS.replace("SIZES", "batch_size=16")
SHORT_FIRST = TWO_DICTS.replace("SIZES", "batch_sampler=[[0, 1], *[list(range(8))] * 4]")

# A list of as many scales as the batch has samples.
SCALES = """
data = [[torch.randn(3, 4) for s in range(4)] + [torch.randn(1)] for i in range(33)]
def collate(b):
    return {"pyramid": [torch.stack([x[s] for x in b]) for s in range(4)],
            "y": torch.stack([x[4] for x in b])}
model = nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for b in DataLoader(data, batch_size=4, collate_fn=collate):
    o.zero_grad(); sum(model(p).mean() for p in b["pyramid"]).backward(); o.step()
"""

# The loader is given batches, and says nothing of their size itself.
OF_A_SAMPLER = IMAGES.replace(
    "batch_size=4", "batch_sampler=torch.utils.data.BatchSampler(range(14), 4, False)"
)
ONE_IMAGE = IMAGES.replace("batch_size=4", "batch_size=1")


SAMPLES = {
    "graphs": (GRAPHS, 14),
    "images": (IMAGES, 14),
    "images of a batch sampler": (OF_A_SAMPLER, 14),
    "one image": (ONE_IMAGE, 14),
    "lists": (LISTS, 14),
    "fields": (FIELDS, 7),
    "ready": (READY, 24),
    "two dictionaries": (SHORT_LAST, 340),
    "two dictionaries, short first": (SHORT_FIRST, 340),
    "scales": (SCALES, 33),
}


def test_samples_are_counted(tmp_path: Path) -> None:
    """64 graphs were 6206 samples: a row for each node, and other ones in each batch."""
    parts = [
        f"def part():{textwrap.indent(program, '    ')}part()\n" for program, _ in SAMPLES.values()
    ]
    (tmp_path / "train.py").write_text(SETUP + "".join(parts))
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    counted = [row["samples"] for row in run.main["loaders"]]
    assert dict(zip(SAMPLES, counted, strict=True)) == {
        name: samples for name, (_, samples) in SAMPLES.items()
    }


# A batch that makes what it does not have, and batches with other fields.
OTHER_FIELDS = """
from collections import defaultdict
items = [("a" if i // 4 % 2 == 0 else "b", torch.randn(4)) for i in range(64)]
def collate(b):
    out = defaultdict(list)
    for task, x in b:
        out[task].append(x)
    return defaultdict(list, {task: torch.stack(xs) for task, xs in out.items()})
model = nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(items, batch_size=4, collate_fn=collate):
    o.zero_grad(); sum(model(v.float()).mean() for v in batch.values()).backward(); o.step()
"""


def test_nothing_is_put_into_the_programs_batch(tmp_path: Path) -> None:
    """Looking for a field made it: the program failed at `v.float()` of an empty list."""
    (tmp_path / "train.py").write_text(SETUP + OTHER_FIELDS)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    assert run.main["loaders"][0]["samples"] == 64
