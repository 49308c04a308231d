"""A program on the second of two GPUs, which nobody makes the current one: whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulated_gpu import devices
from torchdoctor.watch.recording import read_run

pytestmark = pytest.mark.slow

# The loss is near 1, scaled by 2 ** 14; a scaler halves its factor at the overflow of step 6.
SCALED = """
import simulated_gpu.attach
import time
import torch

torch.manual_seed(0)
beside = torch.ones(8, device="cuda:0")
model = torch.nn.Linear(64, 64, bias=False).to("cuda:1")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14)
x = torch.ones(16, 64, device="cuda:1")
for step in range(STEPS):
    loss = 1.0 + 1e-3 * model(x).square().mean()
    scaler.scale(loss).backward()
    if step == 6:
        model.weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    time.sleep(0.002)
assert scaler.get_scale() == 2.0**13
"""
SETTINGS = "devices=2;kernel:mm=60000;queue=64"
NVML = """devices=2
0.uuid=GPU-00000000-0000-0000-0000-000000000001
1.uuid=GPU-00000000-0000-0000-0000-000000000000
0.name=The second of CUDA
1.name=The first of CUDA
0.utilization=90
1.utilization=1
"""


def test_a_run_is_told_by_the_gpu_that_computes_whatever_the_drivers_order(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCALED.replace("STEPS", "100000"), encoding="utf-8")
    options = ["--no-fork", "--no-fixes", "--budget", "100s", "--output", "run", "train.py"]
    ended = devices.doctor(tmp_path, "run", *options, settings=SETTINGS, nvml=NVML)
    assert ended.returncode == 0, ended.stderr[-2000:]
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert report["diagnosis"]["bottleneck"] == "gpu"
    assert report["steps"]["device_clock"]
    assert report["steps"]["mean_s"] >= 0.119  # two products; the scaler waits for them
    recorded = json.loads((tmp_path / "run" / "recording.json").read_text(encoding="utf-8"))
    recording = recorded["recording"]
    used = recording["processes"][0]["used_devices"]
    assert [device["index"] for device in used] == [0, 1]
    # The program has memory on both.
    assert recording["sensors"]["gpu_utilization"] == pytest.approx((0.9 + 0.01) / 2, abs=0.1)


def test_watch_reads_the_loss_of_the_second_gpu_before_its_scaling(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCALED.replace("STEPS", "30"), encoding="utf-8")
    command = ["watch", "--output", "run", "train.py"]
    ended = devices.doctor(tmp_path, *command, settings=SETTINGS)
    assert ended.returncode == 0, ended.stderr[-2000:]
    [log] = read_run(tmp_path / "run").processes
    assert [event for event in log.events if event.kind == "failed"] == []
    losses = log.sensors["loss"]
    read = losses[losses == losses]
    assert len(read) and read == pytest.approx(1.0, abs=0.1)
    assert float(log.sensors["device_bytes"][-1]) > 64 * 64 * 4
