"""What pages give as code is run as it stands there: two processes, on the CPU."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from partial_recordings import recording

from torchdoctor import catalogue

pytestmark = pytest.mark.slow

BEFORE = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
dataset = [torch.full((4,), float(i)) for i in range(64)]
"""
AFTER = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
seen = 0
for x in loader:
    optimizer.zero_grad()
    model(x.to(device)).square().mean().backward()
    optimizer.step()
    seen += len(x)
print(f"rank {rank} saw {seen} of {len(dataset)}", flush=True)
dist.destroy_process_group()
"""


def permanent(fix: str) -> str:
    page = inspect.getdoc(catalogue.fixes()[fix]) or ""
    section = page.split("Make it permanent\n-----------------\n", 1)[1].split("\n\nSources\n")[0]
    return textwrap.dedent(section)


def test_the_lines_for_one_process_a_gpu_train_under_the_command_given(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEFORE + permanent("ddp") + AFTER)
    wrapped = {"ident": 0, "data_parallel": "DataParallel", "device": "cuda:0", "forwards": 9}
    seen = recording({"processes": [{"pid": 1, "models": [wrapped], "devices": ["A", "A"]}]})
    command = catalogue.fixes()["ddp"].instruction({}, seen).splitlines()[-1].split()
    assert command[0] == "torchrun"
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command[1:]],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    # Each process sees its half, and none of it twice.
    assert "rank 0 saw 32 of 64" in ran.stdout
    assert "rank 1 saw 32 of 64" in ran.stdout


def test_the_class_that_prefetches_is_python() -> None:
    compile(permanent("device-prefetch"), "page", "exec")
