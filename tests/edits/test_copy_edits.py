"""A copy that is only read is left out where nothing in its function writes to either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from light_torch import LIGHT

from torchdoctor.edits import ReadOriginalEdit
from torchdoctor.edits.source import edited

HEAD = "import copy\nimport torch\n\ndef step(model, x, y, memory, batch):\n"


def changed(*body: str, line: int = 5) -> str | None:
    source = HEAD + "".join(f"    {text}\n" for text in body)
    made = edited(source, ReadOriginalEdit(file="train.py", line=line))
    return None if made is None else made.splitlines()[line - 1].strip()


@pytest.mark.parametrize(
    ("body", "made"),
    [
        (["kept = x.clone()", "return model(kept)"], "kept = x"),
        (["kept = x.detach().clone()", "memory.append(kept)"], "kept = x.detach()"),
        (["kept = torch.clone(x + y)", "return kept"], "kept = (x + y)"),
        (["memory.append((x.clone(), 1))"], "memory.append((x, 1))"),
        (["return model(x[:4].clone().float())"], "return model(x[:4].float())"),
        (["kept = copy.deepcopy(batch)", "return model(kept['x'])"], "kept = batch"),
    ],
)
def test_what_is_only_read_is_not_copied(body: list[str], made: str) -> None:
    assert changed(*body) == made


@pytest.mark.parametrize(
    "body",
    [
        ["kept = x.clone()", "kept += 1"],
        ["kept = x.clone()", "kept[0] = 1"],
        ["kept = x.clone()", "kept.requires_grad_()"],
        ["kept = x.clone()", "x.mul_(2)"],
        ["kept = x.clone()", "torch.add(x, y, out=x)"],
        ["kept = x.clone(memory_format=torch.channels_last)"],
        ["kept = model.old.clone()", "model.old = x"],
        ["a, b = x.clone(), y.clone()"],  # either of them may have been seen
        ["kept = copy.deepcopy(batch)", "memory.append(kept)"],  # its elements may be changed there
        ["kept = copy.deepcopy(batch)", "batch['x'] = y", "return kept['x']"],
        ["kept = copy.deepcopy(batch)", "kept.pop('y')", "return kept['x']"],
        ["kept = x.clone(  # of the first step", ")"],
        ["kept = x"],
    ],
)
def test_no_copy_is_left_out_that_may_be_needed(body: list[str]) -> None:
    assert changed(*body) is None


TRAIN = f"""
import torch
{LIGHT}
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    x = torch.randn(16, 8)
    kept = x.clone()
    loss = (model(kept) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_a_patched_program_trains_the_same(tmp_path: Path) -> None:
    line = TRAIN.splitlines().index("    kept = x.clone()") + 1
    patched = edited(TRAIN, ReadOriginalEdit(file="train.py", line=line))
    assert patched is not None and "clone" not in patched
    losses = []
    for name, source in (("train.py", TRAIN), ("patched.py", patched)):
        (tmp_path / name).write_text(source)
        ran = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        losses.append(ran.stdout)
    assert losses[0] == losses[1] and len(losses[0].splitlines()) == 6
