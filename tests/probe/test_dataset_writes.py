"""What is seen of a data set that changes itself."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from probed import run_probed

from torchdoctor.probe.measure import dataset_writes

PROGRAM = """
import random
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset, Subset
class Data(Dataset):
    def __init__(self):
        self.count, self.seen, self.kept, self.file = 0, {}, {}, None
        self.rows, self.own = [None] * 400, np.random.default_rng(0)
    def __len__(self):
        return 400
    def load(self, index):
        return torch.tensor([float(index)])
    def open(self):
        self.file = [1.0]
        self.size = len(self.file)
    def note(self, index):
        self.seen[index] = self.seen.get(index, 0) + 1
    def __getitem__(self, index):
        BODY
data = Data()
loader = DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()
"""


def observed(body: str, folder: Path, program: str = PROGRAM) -> tuple[dict[str, Any], list[str]]:
    """Facts of the loader, and the lines of the program."""
    text = program.replace("BODY", body.replace("\n", "\n        "))
    (folder / "train.py").write_text(text)
    run = run_probed(["train.py"], folder, folder, forked=True, warmup_steps=12)
    assert run.said() == []
    assert run.main["loaders"][0]["batches"] > 0, run.stderr
    return run.main["loaders"][0], text.splitlines()


def writes(body: str, folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a data set that is only read, and the lines of its file."""
    text = PROGRAM.partition("data = Data()")[0].replace("BODY", body.replace("\n", "\n        "))
    (folder / "data.py").write_text(text)
    return dataset_writes.of(runpy.run_path(str(folder / "data.py"))["Data"]()), text.splitlines()


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("self.count += 1\nreturn self.load(index)", "self.count"),
        ("self.seen[index] = self.seen.get(index, 0) + 1\nreturn self.load(index)", "self.seen"),
        ("n = self.seen.get(index, 0)\nself.seen[index] = n + 1\nreturn self.load(n)", "self.seen"),
        ("self.rows.append(index)\nreturn self.load(len(self.rows))", "self.rows"),
        ("self.note(index)\nreturn self.load(index) * self.seen[index]", "self.seen"),
        (
            "if index not in self.kept: self.kept[index] = 0\nself.kept[index] += 1\n"
            "return self.load(index)",
            "self.kept",
        ),
    ],
)
def test_a_data_set_that_changes_itself_is_named_with_the_line(
    body: str, name: str, tmp_path: Path
) -> None:
    (row,), lines = writes(body, tmp_path)
    assert (row["name"], row["cache"]) == (name, False)
    assert lines[row["location"]["line"] - 1].strip() == row["text"]
    assert row["location"]["file"] == str(tmp_path / "data.py")
    assert name in row["text"]


@pytest.mark.parametrize(
    "body",
    [
        "if index not in self.kept:\n    self.kept[index] = self.load(index)\n"
        "return self.kept[index]",
        "if index in self.kept: return self.kept[index]\nx = self.load(index)\n"
        "self.kept[index] = x\nreturn x",
        "x = self.kept.get(index)\nif x is None:\n    x = self.load(index)\n"
        "    self.kept[index] = x\nreturn x",
        "try:\n    return self.kept[index]\nexcept KeyError:\n"
        "    x = self.kept[index] = self.load(index)\nreturn x",
        "if self.kept.get(index) is None: self.kept[index] = self.load(index)\n"
        "return self.kept[index]",
        "return self.kept.setdefault(index, self.load(index))",
    ],
)
def test_a_cache_of_samples_is_no_change_in_earnest(body: str, tmp_path: Path) -> None:
    (row,), _ = writes(body, tmp_path)
    assert (row["name"], row["cache"]) == ("self.kept", True)


@pytest.mark.parametrize(
    "body",
    [
        "return self.load(index)",
        "if self.file is None: self.open()\nreturn self.load(index)",
        "if not hasattr(self, 'reader'): self.reader = [1.0]\nreturn self.load(index)",
        "return self.load(index) + self.own.random()",
    ],
)
def test_plain_and_augmenting_data_sets_change_nothing_in_themselves(
    body: str, tmp_path: Path
) -> None:
    assert writes(body, tmp_path)[0] == []


def test_data_sets_within_others_are_read(tmp_path: Path) -> None:
    wrapped = PROGRAM.replace("data = Data()", "data = Subset(Data(), range(100))")
    body = "self.count += 1\nreturn self.load(index)"
    facts, _ = observed(body, tmp_path, wrapped.replace("shuffle=True", "num_workers=1"))
    assert [one["name"] for one in facts["dataset_writes"]] == ["self.count"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 raises what was caught")
def test_an_error_of_the_data_set_shows_no_frame_of_the_probe(tmp_path: Path) -> None:
    text = PROGRAM.replace("BODY", "raise ValueError('broken sample')")
    (tmp_path / "train.py").write_text(text)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert "broken sample" in run.stderr
    assert "sample_check" not in run.stderr and "loader_hooks" not in run.stderr
