"""Ranks of one training under `watch`: each writes its own log, and they meet in exchanges."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_watch_fidelity import ended

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        if dist.get_rank() == 1:
            time.sleep(0.01)
        return torch.ones(4)

def train(rank):
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in torch.utils.data.DataLoader(Data(), batch_size=4):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 1:
        time.sleep(5)  # what is logged is on disk after a second
        os.kill(os.getpid(), 9)  # dies after its last step

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""


@pytest.mark.slow
def test_the_last_rank_to_enter_is_the_one_that_is_slowed(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TRAIN)
    words = [sys.executable, "-m", "torchdoctor", "watch", "--output", str(run), "--"]
    program = subprocess.run(
        [*words, sys.executable, str(script), str(tmp_path / "meet")], capture_output=True
    )
    assert program.returncode == 1 and b"SIGKILL" in program.stderr
    first, second = ended(run).processes
    assert [log.process.rank for log in (first, second)] == [0, 1]
    assert {log.process.world_size for log in (first, second)} == {2}
    assert not second.process.exited
    count = min(len(first.steps), len(second.steps))
    assert count > 40
    assert (first.steps.step[:count] == second.steps.step[:count]).all()
    late_ns = (second.steps.entry_ns[:count] - first.steps.entry_ns[:count])[:-1]
    assert np.median(late_ns) > 10e6
    # Nobody leaves an exchange before the last one has entered it.
    assert np.all(first.steps.exchanged_ns[: count - 1] > second.steps.entry_ns[: count - 1] - 1e6)
