"""How many samples a batch has, where its tensors are not one row for each."""

from __future__ import annotations

from pathlib import Path

import pytest
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


@pytest.mark.parametrize(
    ("program", "samples"),
    [(GRAPHS, 14), (IMAGES, 14), (LISTS, 14), (FIELDS, 7), (READY, 24)],
    ids=["graphs", "images", "lists", "fields", "ready"],
)
def test_samples_are_counted(program: str, samples: int, tmp_path: Path) -> None:
    """64 graphs were 6206 samples: a row for each node, and other ones in each batch."""
    (tmp_path / "train.py").write_text(SETUP + program)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    assert run.main["loaders"][0]["samples"] == samples
