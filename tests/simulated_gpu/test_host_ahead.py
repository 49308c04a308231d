"""A program that never waits for its GPU: what the host needs is not what a step takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from light_torch import LIGHT

from simulated_gpu import devices

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("trials")]

# The device needs 60 ms for a step, or 40 with TF32, and no more where the host is slowed by other
# programs: the host needs 20, or 10 where gradients are dropped, and is ahead by more and more.
PROGRAM = """
import simulated_gpu.attach
import time
import torch
{light}
torch.manual_seed(0)
model = torch.nn.Linear(64, 64, bias=False).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
x = torch.ones(64, 64, device="cuda", requires_grad=True)
for step in range(2000):
    began = time.perf_counter()
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    host_s = 0.020 if {slower} else 0.010
    time.sleep(max(began + host_s - time.perf_counter(), 0.0))
"""
_FLOPS = 2 * 64**3  # of a product, and there are three in a step
GFLOPS, GFLOPS_LOW = (_FLOPS / (device_s / 3) / 1e9 for device_s in (0.060, 0.040))
# A queue that never gets full: the host would wait for the device there.
DEVICE = f"gflops={GFLOPS};gflops_low={GFLOPS_LOW};kernel_us=1;queue=1000000"


def tried(folder: Path, program: str, fix: str) -> dict[str, Any]:
    """Return the row of the one fix that was tried."""
    (folder / "train.py").write_text(program, encoding="utf-8")
    options = ["--no-fork", "--fixes", fix, "--budget", "3m", "--steps", "10", "--output", "out"]
    ran = devices.doctor(folder, "run", *options, "train.py", settings=DEVICE)
    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
    [trial] = [trial for trial in report["trials"] if list(trial["fixes"]) == [fix]]
    return trial


def test_a_fix_of_the_host_alone_gains_nothing_where_the_gpu_is_busy(tmp_path: Path) -> None:
    program = PROGRAM.format(light=LIGHT, slower="model.weight.grad is not None")
    trial = tried(tmp_path, program, "set-to-none")
    assert trial["speedup"]["estimate"] == pytest.approx(1.0, abs=0.02)
    assert trial["median_speedup"] is None, "the host's own median step is twice as fast"
    assert trial["verdict"] not in ("faster", "looks-faster")


def test_a_fix_of_kernels_gains_what_the_gpu_gains(tmp_path: Path) -> None:
    speedup = tried(tmp_path, PROGRAM.format(light=LIGHT, slower="False"), "tf32")["speedup"]
    assert speedup["estimate"] == pytest.approx(60 / 40, abs=0.05)
