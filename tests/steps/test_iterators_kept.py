"""A loader that goes on with an iterator which it made itself is seen, by `run` and by `watch`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from observed_programs import observe, recorder_of

from torchdoctor.watch.recording import read_run

pytestmark = pytest.mark.slow

# As in ultralytics: no iteration reaches torch's `__iter__`.
PROGRAM = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class Endless(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = MADE
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = Endless(data, batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""
MADE = {"by its parent": "super().__iter__()", "by its own method": "self._get_iterator()"}


@pytest.mark.parametrize("made", MADE)
def test_its_batches_are_the_steps_of_a_run(made: str, tmp_path: Path) -> None:
    seen = observe(recorder_of(PROGRAM.replace("MADE", MADE[made]), tmp_path))
    assert seen.steps_found.boundary.kind == "loader"
    assert seen.steps.total_steps_seen == 5 * 8 - 2  # no fetch follows the last batch
    (loader,) = seen.processes[0].loaders
    assert loader.batches == 5 * 8


@pytest.mark.parametrize("made", MADE)
def test_its_batches_are_the_steps_of_a_watched_run(made: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("MADE", MADE[made]))
    command = [sys.executable, "-m", "torchdoctor", "watch", "--output", "seen", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (process,) = read_run(tmp_path / "seen").processes
    assert process.process.step_kind == "loader"
    assert int(process.steps.steps.sum()) == 5 * 8
