"""The examples of fixes that need a GPU, without the fix and with it, on the simulated one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from probed import run_probed
from simulated_gpu import devices

from torchdoctor.advice import catalogue

# In one process, which starts a server of programs for each kind of device.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated-gpu")]
# remove-sync's keeps a real GPU busy with products that the simulated one would have to compute.
FIXES = ["cudnn-benchmark", "pin-memory", "tensor-on-device", "tf32"]


@pytest.mark.parametrize("ident", FIXES)
def test_the_example_of_a_fix_does_what_it_says(ident: str, tmp_path: Path) -> None:
    fix = catalogue.fixes()[ident]
    assert fix.example is not None
    example = fix.example
    # In the first line: settings name lines.
    (tmp_path / "example.py").write_text("import simulated_gpu.attach; " + example.program)
    options: Any = {"env": devices.variables(), "forked": True, "after": "continue"}
    plan = {"id": ident, "file": fix.file, "settings": example.settings}
    for fixes, shown in (([], example.without), ([plan], example.with_fix)):
        folder = tmp_path / str(len(fixes))
        folder.mkdir()
        ended = run_probed(["example.py"], tmp_path, folder, fixes=fixes, **options)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.strip() == shown
        assert ended.said() == []
    assert [row["state"] for row in ended.main["fixes"]] == ["applied"]


# The newer switches: once they differ from the older ones, reading `allow_tf32` raises.
PRECISION = """
import json, torch
from types import SimpleNamespace
from torchdoctor.fixes.tf32 import apply
from torchdoctor.probe.accelerator import Accelerator
from torchdoctor.probe.hooks import flag_hooks

matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
owners = matmul, cudnn.conv, cudnn.rnn
for owner, precision in zip(owners, SET):
    owner.fp32_precision = precision
def read():
    newer = [owner.fp32_precision for owner in owners]
    return newer if SET else [matmul.allow_tf32, cudnn.allow_tf32]
here = torch.ones(4, device="cuda:1")
turns = []
program = SimpleNamespace(
    accelerator=Accelerator(torch), refuse=turns.append, applied=lambda: turns.append("applied"),
    set_reason=lambda reason: None, at_first_batch=lambda on, off: turns.extend([on, off]))
apply(torch, {}, program)
on, off = turns[:2]
rows = [read(), flag_hooks._refuses_older(matmul, cudnn)]
for turn in (on, off, on):
    turn()
    rows.append(read())
flags = flag_hooks._tf32(matmul, matmul), flag_hooks._tf32(cudnn, cudnn.conv)
print(json.dumps([rows, turns[2:], flags, flag_hooks._refuses_older(matmul, cudnn)]))
"""


@pytest.mark.parametrize("precisions", [["tf32", "ieee", "ieee"], ["ieee"] * 3, []], ids=str)
def test_tf32_is_switched_on_and_back_by_the_switches_that_the_program_uses(
    precisions: list[str],
) -> None:
    if precisions and not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("this torch has no fp32_precision")
    program = PRECISION.replace("SET", str(precisions))
    rows, turns, flags, refuses = devices.run(program, "devices=2")
    before, refused, *switched = rows
    assert refused is bool(precisions)
    assert before == (precisions or before)
    on = ["tf32"] * 3 if precisions else [True, True]
    assert switched == [on, before, on]
    assert refuses is bool(precisions)
    assert turns == ["applied", "applied"] and flags == [True, True]
