"""What the order of batches costs, seen in the training process of a loader with real workers."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from probed import run_probed

pytestmark = pytest.mark.slow

# Sample 0 of each pair of batches takes until the other worker has made its batch.
UNEVEN = """
import multiprocessing, sys, time
import torch

class Uneven(torch.utils.data.Dataset):
    def __init__(self, done, uneven):
        self.done, self.uneven = done, uneven
    def __len__(self):
        return 16
    def __getitem__(self, index):
        if self.uneven and index % 2 == 0:
            self.done.acquire(timeout=20)
            time.sleep(0.2)
        elif self.uneven:
            self.done.release()
        return torch.ones(3)

if __name__ == "__main__":
    data = Uneven(multiprocessing.Semaphore(0), "even" not in sys.argv)
    more = {"in_order": False} if "free" in sys.argv else {}
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(data, batch_size=1, num_workers=2, **more):
        model(x).sum().backward()
        optimizer.step()
"""


def loader_of(folder: Path, *arguments: str) -> dict[str, float]:
    (folder / "train.py").write_text(UNEVEN)
    run = run_probed(["train.py", *arguments], folder, folder, forked=True, after="continue")
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    (loader,) = run.main["loaders"]
    assert loader["batches"] == 16
    found: dict[str, float] = loader
    return found


def test_a_slow_worker_that_others_wait_for_is_seen(tmp_path: Path) -> None:
    found = loader_of(tmp_path)
    # Of eight slow batches, those after the first fast one find one ready.
    assert 6 <= found["overtaken"] <= 8
    assert found["overtaken_s"] >= 0.2 * 6 * 0.9


def test_out_of_order_nobody_waits_for_it(tmp_path: Path) -> None:
    if "in_order" not in inspect.signature(torch.utils.data.DataLoader).parameters:
        pytest.skip("torch before 2.6")
    found = loader_of(tmp_path, "free")
    assert (found["overtaken"], found["overtaken_s"]) == (0, 0.0)


def test_without_workers_nothing_is_noted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNEVEN.replace("num_workers=2", "num_workers=0"))
    run = run_probed(["train.py", "even"], tmp_path, tmp_path, forked=True, after="continue")
    assert run.returncode == 0, run.stderr
    assert run.main["loaders"][0]["overtaken"] == 0


PACED = """
import sys, time
import torch

class Paced(torch.utils.data.Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        time.sleep(0.08 if "slow" in sys.argv else 0.0)
        return torch.ones(3)

if __name__ == "__main__":
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"in_order": False} if "unordered" in sys.argv else {}
    for x in torch.utils.data.DataLoader(Paced(), batch_size=2, num_workers=2, **options):
        time.sleep(0.0 if "slow" in sys.argv else 0.12)
        model(x).sum().backward()
        optimizer.step()
"""


def test_batches_that_lie_ready_are_told_from_slow_workers(tmp_path: Path) -> None:
    """Workers with nothing to do were said to wait for a network or a lock."""
    shares = {}
    in_order = "in_order" in inspect.signature(torch.utils.data.DataLoader).parameters
    for how in ("quick", "slow", *(["unordered"] if in_order else [])):
        folder = tmp_path / how
        folder.mkdir()
        (folder / "train.py").write_text(PACED)
        run = run_probed(["train.py", how], folder, folder, forked=True, after="continue")
        assert run.returncode == 0 and run.said() == [], run.stderr
        (loader,) = run.main["loaders"]
        both_s = loader["taken_over_s"] + loader["awaited_s"]
        assert both_s > 0.0
        # Of 60 batches, without the first ones of each worker and those that came beside them.
        assert 30 < loader["looks"] <= 58
        shares[how] = loader["taken_over_s"] / both_s
    # A worker may be late once on a busy machine, but no batch of a slow one lies ready.
    assert shares["quick"] > 3 * shares["slow"] and shares["slow"] < 0.2, shares
    assert shares.get("unordered", shares["quick"]) > 3 * shares["slow"], shares
