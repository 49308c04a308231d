"""Losses that lie on a device: read at the ends of blocks, never within one.

A tensor that says that it lies on a GPU stands for one. A loss that is never read makes every fix
"training could not be compared"; one that is read within a block makes the step wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probed import Probed, run_probed

from torchdoctor.probe import step_log

pytestmark = pytest.mark.slow

SCRIPT = """
import time, torch
class OnDevice(torch.Tensor):
    device = property(lambda self: torch.device("cuda"))
    is_cpu = property(lambda self: False)
own_item = torch.Tensor.item
def item(self):
    if self.is_floating_point():  # a loader's seed is none
        with open("read.txt", "a") as file:
            file.write("%d\\n" % time.perf_counter_ns())
    return own_item(self)
torch.Tensor.item = item
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(800, 4))
for x, in torch.utils.data.DataLoader(data, batch_size=4):
    loss = model(x).square().mean()
    loss.as_subclass(OnDevice).backward()
    with open("losses.txt", "a") as file:
        file.write("%r\\n" % float(loss))
    optimizer.step()
    optimizer.zero_grad()
    if len(open("losses.txt").readlines()) >= LAST:
        break
"""
BOUNDARY = {"kind": "loader", "ident": 0, "every": 1}
TURNS = {"warmup_steps": 3, "block_steps": 4, "discard_steps": 1, "block_most_s": 60.0}
SWITCH = {"arms": [[]], "rounds": 1, "block_steps": 4, "discard_steps": 1, "seed": 3}


def train(folder: Path, last: int = 10**6, **plan: Any) -> Probed:
    (folder / "train.py").write_text(SCRIPT.replace("LAST", str(last)))
    return run_probed(
        ["train.py"], folder, folder, forked=True, purpose="time", phases=False, **plan
    )


def check_losses(run: Probed, folder: Path, fewest: int) -> None:
    assert run.said() == []
    losses = run.losses()
    assert len(losses) >= fewest
    true = np.loadtxt(folder / "losses.txt")
    assert np.allclose(losses, true[: len(losses)], rtol=0, atol=0)


def read_within_blocks(run: Probed, folder: Path) -> list[int]:
    rows = run.events[run.main_pid]
    begins, ends = (
        rows[rows[:, 0] == code, 2] for code in (step_log.BLOCK_BEGIN, step_log.BLOCK_END)
    )
    assert len(begins) == len(ends) > 1
    read = np.loadtxt(folder / "read.txt", dtype=np.int64)
    assert len(read)
    return [int(((read > a) & (read < b)).sum()) for a, b in zip(begins, ends, strict=True)]


def test_losses_are_read_where_a_launch_stands_still_between_its_blocks(tmp_path: Path) -> None:
    (tmp_path / "channel").mkdir()
    for turn in range(6):
        (tmp_path / "channel" / f"go-{turn}").touch()  # it is always its turn
    run = train(tmp_path, 24, boundary=BOUNDARY, turns=TURNS)
    check_losses(run, tmp_path, 24)
    assert not any(read_within_blocks(run, tmp_path))


def test_losses_are_read_between_the_blocks_of_fixes_that_are_switched(tmp_path: Path) -> None:
    run = train(tmp_path, boundary=BOUNDARY, warmup_steps=3, switch=SWITCH)
    assert run.stopped_by == "done"
    check_losses(run, tmp_path, 16)
    assert not any(read_within_blocks(run, tmp_path))


def test_losses_are_read_at_the_end_of_a_window(tmp_path: Path) -> None:
    run = train(tmp_path, boundary=BOUNDARY, warmup_steps=3, measure_steps=8)
    assert run.stopped_by == "done"
    check_losses(run, tmp_path, 11)
    rows = run.events[run.main_pid]
    [begin] = rows[rows[:, 0] == step_log.WINDOW_BEGIN, 2]
    [end] = rows[rows[:, 0] == step_log.WINDOW_END, 2]
    read = np.loadtxt(tmp_path / "read.txt", dtype=np.int64)
    assert not ((read > begin) & (read < end)).any()


def test_a_launch_that_observes_reads_no_loss_from_a_device(tmp_path: Path) -> None:
    run = train(tmp_path, 12, boundary=None)
    assert run.said() == []
    assert np.isinf(run.losses()).all()
    assert not (tmp_path / "read.txt").exists()


SCALED = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
data = torch.utils.data.TensorDataset(torch.randn(800, 4))
for step, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    loss = model(x).square().mean()
    with open("losses.txt", "a") as file:
        file.write("%r\\n" % float(loss))
    scaler.scale(loss).backward()
    if step == 3:
        model.weight.grad.fill_(float("inf"))  # an overflow: the scaler halves its factor
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step == 11:
        assert scaler.get_scale() == 2.0**13
        break
"""


def test_a_loss_is_what_it_was_before_a_scaler_multiplied_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCALED)
    run = run_probed(
        ["train.py"], tmp_path, tmp_path, forked=True, purpose="time", phases=False,
        boundary=BOUNDARY, warmup_steps=3, measure_steps=8,
    )  # fmt: skip
    check_losses(run, tmp_path, 11)


def test_a_loss_on_a_device_is_kept_though_its_memory_is_written_over(tmp_path: Path) -> None:
    # As the next replay of a compiled CUDA graph does with the memory of its results.
    replayed = "import sys; sys.modules['torch._inductor.cudagraph_trees'] = sys\n"
    overwritten = replayed + SCRIPT.replace(
        "optimizer.step()", "loss.detach().fill_(1e9); optimizer.step()"
    )
    (tmp_path / "train.py").write_text(overwritten.replace("LAST", "12"))
    run = run_probed(
        ["train.py"], tmp_path, tmp_path, forked=True, purpose="time", phases=False,
        boundary=BOUNDARY, warmup_steps=3, measure_steps=8,
    )  # fmt: skip
    check_losses(run, tmp_path, 11)
