"""What a fetch waited for a CPU is counted, in a program that has a rival for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed import run_probed

RIVAL = """
import os, subprocess, sys
import torch

class Computes(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        total = 0
        for number in range(400_000):
            total += number
        return torch.ones(3)

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(1)
rival = subprocess.Popen([sys.executable, "-S", "-c", "print(1, flush=True)\\nwhile True: pass"],
                         stdout=subprocess.PIPE)
try:
    rival.stdout.readline()
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(Computes(), batch_size=1):
        model(x).sum().backward()
        optimizer.step()
finally:
    rival.kill()
"""


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="Linux counts it")
def test_a_fetch_that_shares_its_cpu_is_all_cpu_time_and_partly_queue(tmp_path: Path) -> None:
    """By CPU time alone, half of it would be a wait for some disk."""
    (tmp_path / "train.py").write_text(RIVAL)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True, after="continue")
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    (loader,) = run.main["loaders"]
    assert loader["sample_cpu_share"] > 0.8
    assert 0.05 < loader["sample_queue_share"] < loader["sample_cpu_share"]
