"""A copy gives way to its original only while neither of them is written to."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed_examples import Ran, run_with

pytestmark = pytest.mark.slow

PROGRAM = """import copy, torch
from copy import deepcopy
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
table, kept, shared = torch.ones(4, 4), [], []
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(60, 4)), 2)
for (x,) in loader:
    part = COPY
    CHANGE
    tensor = part["t"][0] if isinstance(part, dict) else part
    shared.append(tensor.data_ptr() == table.data_ptr())
    model(x + tensor[:2]).sum().backward()
print(any(shared), shared[0], float(table.sum()))
"""
LINE = PROGRAM.splitlines().index("    part = COPY") + 1


def run(tmp_path: Path, copied: str, change: str = "pass") -> Ran:
    program = PROGRAM.replace("COPY", copied).replace("CHANGE", change)
    settings = {"file": str(tmp_path / "example.py"), "lines": [LINE]}
    ran = run_with(program, {"read-without-copy": settings}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.probe_errors == []
    return ran


@pytest.mark.parametrize(
    "copied",
    ["table.clone()", "deepcopy(table)", "copy.deepcopy({'t': [table], 'n': 3})"],
)
def test_a_copy_that_is_only_read_becomes_the_original(tmp_path: Path, copied: str) -> None:
    ran = run(tmp_path, copied)
    assert ran.stdout == "True False 16.0"
    assert ran.applied["read-without-copy"]["state"] == "applied"


@pytest.mark.parametrize(
    ("copied", "change", "total", "why"),
    [
        ("table.clone()", "part.add_(1)", "16.0", "copy-is-changed"),
        ("table.clone()", "table.add_(1)", "496.0", "original-is-changed"),
        ("table.clone()", "kept.append(part)", "16.0", "copies-are-kept"),
        ("deepcopy({'t': [table], 'n': [object()]})", "pass", "16.0", "copies-other-objects"),
    ],
)
def test_a_copy_that_is_changed_stays_one(
    tmp_path: Path, copied: str, change: str, total: str, why: str
) -> None:
    ran = run(tmp_path, copied, change)
    assert ran.stdout == f"False False {total}"
    fix = ran.applied["read-without-copy"]
    assert fix["state"] in ("refused", "pending")
    assert fix["state"] == "pending" or fix["why"]["fact"] == why
