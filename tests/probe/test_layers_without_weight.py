"""Layers derived from torch's whose weight comes from elsewhere, in a real program."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed import run_probed

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Shared(nn.Conv2d):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.bank = nn.Parameter(torch.randn(2, *self.weight.shape))
        WITHOUT
    def forward(self, x):
        return nn.functional.conv2d(x, self.bank.mean(0), self.bias)

class Net(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv, self.head = conv, nn.Linear(4, 1)
    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))

student, teacher = Net(nn.Conv2d(3, 4, 3)), Net(Shared(3, 4, 3))
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for epoch in range(3):
    for x in DataLoader(torch.randn(40, 3, 8, 8), batch_size=4):
        with torch.no_grad():
            wanted = teacher(x)
        optimizer.zero_grad()
        (student(x) - wanted).square().mean().backward()
        optimizer.step()
    LATER
"""


@pytest.mark.parametrize(
    ("without", "later"),
    [
        ("self.weight = None", "pass"),
        ("del self.weight", "pass"),
        ("pass", "teacher.conv.weight = None"),
    ],
    ids=["none", "deleted", "later"],
)
def test_the_program_and_all_its_forwards_are_as_they_were(
    without: str, later: str, tmp_path: Path
) -> None:
    """The teacher could not be described, and its next forward raised an IndexError of ours."""
    text = PROGRAM.replace("WITHOUT", without).replace("LATER", later)
    (tmp_path / "train.py").write_text(text)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    assert [model["forwards"] for model in run.main["models"]] == [30, 30]
