"""Lines that ask for float64: seen until the first step, and nothing stays wrapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from probed import run_plain, run_probed

pytestmark = pytest.mark.slow

PROGRAM = """
import numpy as np
import torch
from torch import nn

DTYPE = torch.float64
x, labels = torch.from_numpy(np.ones((8, 3))), torch.tensor(np.arange(8))
y = torch.as_tensor(np.ones((8, 1)), device="cpu"); z = torch.as_tensor(np.arange(8))
named = torch.tensor(data=[1.0]), torch.ones(1).type()
single = torch.from_numpy(np.ones(3, dtype="f4"))
model = nn.Linear(3, 1).to("cpu", DTYPE)
before = torch.Tensor.to, torch.from_numpy, torch.nn.Module.double
o = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    loss = (model(x) - y.double()).square().mean()
    o.zero_grad(); loss.backward(); o.step()
    later = x.double()  # no step waits for it
after = torch.Tensor.to, torch.from_numpy, torch.nn.Module.double
print([a for a in after if "double_calls" in str(getattr(a, "__code__", ""))])
"""


def facts_of(program: str, folder: Path) -> dict[str, Any]:
    (folder / "train.py").write_text(program)
    run = run_probed(["train.py"], folder, folder, forked=True, after="continue")
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    assert run.stdout == run_plain(["train.py"], folder, forked=True).stdout
    return run.main


def test_the_lines_that_ask_for_float64_are_seen_and_nothing_stays_wrapped(tmp_path: Path) -> None:
    facts = facts_of(PROGRAM, tmp_path)
    lines = PROGRAM.splitlines()
    found = {
        (row["kind"], row["name"], lines[row["location"]["line"] - 1].split()[0], row["sure"])
        for row in facts["double_calls"]
    }
    assert found == {
        ("data", "from_numpy", "x,", True),
        ("data", "as_tensor", "y", False),  # the same line makes whole numbers by the same call
        ("data", "double", "loss", True),
        ("model", "to", "model", True),
    }
    (model,) = facts["models"]
    assert model["float64_elements"] == model["elements"] == 4


def test_a_default_of_float64_is_seen_and_what_follows_it_is_not(tmp_path: Path) -> None:
    program = PROGRAM.replace("DTYPE = torch.float64", "torch.set_default_dtype(torch.float64)")
    program = program.replace('.to("cpu", DTYPE)', "").replace(".double()", "")
    program += "listed = torch.tensor([1.0, 2.0])\n"
    rows = facts_of(program, tmp_path)["double_calls"]
    kinds = {(row["kind"], row["name"]) for row in rows}
    assert kinds == {
        ("default", "set_default_dtype"),
        ("data", "from_numpy"),
        ("data", "as_tensor"),
    }


HALF = """
import torch
from torch import nn

x = torch.ones(8, 3).half()
y = torch.zeros(8, 1, dtype=torch.float16)
model = nn.Linear(3, 1).to(torch.float16)
single = torch.ones(3).to(torch.float32)
for _ in range(3):
    (model(x) - y).square().mean().backward()
"""


def test_the_lines_that_ask_for_float16_are_told_apart(tmp_path: Path) -> None:
    facts = facts_of(HALF, tmp_path)
    lines = HALF.splitlines()
    told = {
        (row["kind"], row["name"], lines[row["location"]["line"] - 1].split()[0], row["sure"])
        for row in facts["half_calls"]
    }
    assert told == {("data", "half", "x", True), ("model", "to", "model", True)}
    assert facts["double_calls"] == []
