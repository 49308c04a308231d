"""Ranks of one training under `watch`: each writes its own log, and they meet in exchanges."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from light_torch import LIGHT
from test_watch_fidelity import ended

from torchdoctor.watch.ranks import ranks_of

TRAIN = f"""
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
{LIGHT}
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
    if "forgive" not in sys.argv:
        mp.spawn(train, nprocs=2)
    else:
        try:
            mp.start_processes(train, nprocs=2, start_method="fork")
        except mp.ProcessExitedException:
            pass
"""
RAY_TRAIN = """
import os, time
import ray, ray.train.torch, torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        if torch.distributed.get_rank() == 1:
            time.sleep(0.01)
        return torch.ones(4)

def train(config):
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = ray.train.torch.prepare_data_loader(torch.utils.data.DataLoader(Data(), batch_size=2))
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

ray.init(num_cpus=4, object_store_memory=80 << 20, include_dashboard=False)
scaling, backend = ScalingConfig(num_workers=2), TorchConfig(backend="gloo")
TorchTrainer(train, scaling_config=scaling, torch_config=backend).fit()
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
    over = ended(run)
    first, second, starter = over.processes
    assert over.starts[0].exited is False and starter.process.rank is None
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


@pytest.mark.slow
def test_a_program_that_outlives_a_killed_rank_has_ended_by_itself(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TRAIN)
    words = [sys.executable, "-m", "torchdoctor", "watch", "--output", str(run), "--"]
    program = subprocess.run([*words, sys.executable, str(script), str(tmp_path / "m"), "forgive"])
    over = ended(run)
    assert program.returncode == 0 and over.starts[0].exited is True
    assert [log.process.exited for log in over.processes] == [True, False, True]


@pytest.mark.slow
def test_the_workers_of_ray_train_are_ranks(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch", reason="Ray Train is not installed (ray[train])")
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(RAY_TRAIN)
    words = [sys.executable, "-m", "torchdoctor", "watch", "--output", str(run), "--"]
    program = subprocess.run([*words, sys.executable, str(script)], capture_output=True)
    over = ended(run)
    assert program.returncode == 0 and over.starts[0].exited is True, program.stderr
    ranks = [log for log in over.processes if log.process.rank is not None]
    assert [(log.process.rank, log.process.world_size) for log in ranks] == [(0, 2), (1, 2)]
    assert all(59 <= log.steps.step[-1] <= 60 for log in ranks)  # Ray kills them: the last is open
    joined = ranks_of(over)
    assert joined.rank == 1 and joined.slowest is not None and joined.slowest.finding is not None
    longer = next(x for x in joined.slowest.finding.evidence if x.fact == "longer")
    assert longer.values["parts"][0]["name"] == "waiting for data"
