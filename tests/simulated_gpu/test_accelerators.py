"""Accelerators that are not CUDA's, and builds for CUDA on a machine without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from light_torch import LIGHT
from synthetic_traces import every_branch

from simulated_gpu import devices
from simulated_gpu.planted import PLANTED
from torchdoctor.probe.accelerator import Accelerator

pytestmark = pytest.mark.slow
ATTACHED = "import simulated_gpu.attach\n"
ON_THE_CPU = f"""
import torch
{LIGHT}from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(16, 1).to("cuda" if torch.cuda.is_available() else "cpu")
for epoch in range(20):
    for (x,) in DataLoader(TensorDataset(torch.ones(64, 16)), batch_size=4):
        model(x).mean().backward()
        for parameter in model.parameters():
            parameter.data -= 0.01 * parameter.grad
            parameter.grad = None
"""


def test_an_illness_of_another_accelerator_is_named_with_its_place(tmp_path: Path) -> None:
    planted = PLANTED["tensors-made-on-the-host"]
    report = planted.report(tmp_path, "--no-fixes", "--budget", "2m", kind="npu")
    assert planted.mistakes(report) == []
    assert [gpu["name"] for gpu in report["environment"]["gpus"]] == ["Simulated NPU"]


def test_env_names_the_accelerator_that_torch_knows(tmp_path: Path) -> None:
    ended = devices.doctor(tmp_path, "env", kind="npu", everywhere=True)
    assert ended.returncode == 0, ended.stderr
    assert "GPU          Simulated NPU" in ended.stdout.splitlines()


@pytest.mark.parametrize(("kind", "build"), [("cuda", "CUDA 12.8"), ("rocm", "ROCm 6.4")])
def test_a_build_for_a_gpu_works_without_one_and_says_so(
    tmp_path: Path, kind: str, build: str
) -> None:
    (tmp_path / "train.py").write_text(ATTACHED + ON_THE_CPU, encoding="utf-8")
    command = ["run", "--no-fork", "--no-fixes", "--budget", "1m", "--output", "run", "train.py"]
    ended = devices.doctor(tmp_path, *command, settings="devices=0", kind=kind)
    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert any(
        x.startswith(f"This torch was built for {build} and sees no GPU") for x in report["doubts"]
    )
    assert "sync-in-step" not in {x["check"] for x in report["diagnosis"]["findings"]}
    # On a machine without the GPU, a trace of one that has it is diagnosed all the same.
    (tmp_path / "trace.json").write_bytes(every_branch().text())
    commands = [["report", "run"], ["diagnose", "trace.json"], ["env"]]
    for command in commands if kind == "cuda" else []:
        shown = devices.doctor(tmp_path, *command, settings="devices=0", kind=kind, everywhere=True)
        assert shown.returncode == 0, shown.stderr


def test_a_torch_that_raises_where_there_is_no_device_has_none() -> None:
    """As torch 2.6 does, where the whole probe was lost by it."""

    def raises() -> None:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    cuda = SimpleNamespace(synchronize=lambda: None, device_count=lambda: 0)
    torch = SimpleNamespace(
        accelerator=SimpleNamespace(current_accelerator=raises),
        version=SimpleNamespace(cuda="12.4"),
        get_device_module=lambda name: {"cuda": cuda}[name],
    )
    accelerator = Accelerator(torch)
    assert (accelerator.built, accelerator.type) == (True, "cuda")
    assert not accelerator.is_available()
