"""What trials of advice on training do to a program: exactly what the edit would, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from probed_examples import Ran, run_with

pytestmark = pytest.mark.slow

BEGIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1, dtype=torch.float64)
rows = torch.randn(64, 4, dtype=torch.float64)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8)
"""
LOOP = """
for (x,) in data:
    optimizer.zero_grad()
    (model(x) - 3.0).square().mean().backward()
    optimizer.step()
print(["%.12f" % v for v in model.weight.flatten().tolist()])
"""


def ran(program: str, fix: str | None, folder: Path, settings: dict[str, Any] | None = None) -> Ran:
    found = run_with(program, {fix: settings or {}} if fix else {}, folder)
    assert found.returncode == 0, found.stderr
    assert not found.probe_errors
    return found


def test_adam_with_the_decay_taken_off_is_adamw(tmp_path: Path) -> None:
    arguments = "model.parameters(), lr=0.01, weight_decay=0.3"
    adam, adamw = (
        f"{BEGIN}optimizer = torch.optim.{name}({arguments}){LOOP}" for name in ("Adam", "AdamW")
    )
    changed = ran(adam, "adamw", tmp_path / "changed")
    assert changed.applied["adamw"]["state"] == "applied"
    plain = ran(adam, None, tmp_path / "plain").stdout
    assert changed.stdout == ran(adamw, None, tmp_path / "real").stdout != plain
    untouched = ran(adamw, "adamw", tmp_path / "adamw")
    assert untouched.stdout == changed.stdout, "AdamW stays as it is"
    assert untouched.applied["adamw"]["state"] == "pending"
