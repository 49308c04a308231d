"""Programs that train in float64, run in float32 by the fix: the losses stay, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed_examples import run_with

pytestmark = pytest.mark.slow


LOOP = """
import numpy as np
import torch
from torch import nn

{setup}
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x, state=None):
        x = {convert}
        seen.add(x.dtype)
        return self.line(x + torch.zeros(3)) * self.scale

seen = set()
model = Net().double()
o = {optimizer}
array = np.random.default_rng(0).uniform(size=(8, 3))
x, y = torch.from_numpy(array), torch.from_numpy(array[:, :1].copy())
losses = []
for _ in range(6):
    def closure():
        o.zero_grad()
        loss = {loss}
        loss.backward()
        return loss
    losses.append(float(o.step(closure)))
print(torch.get_default_dtype(), [str(d) for d in sorted(seen, key=str)], model.line.weight.dtype)
print(*("%.4f" % loss for loss in losses))
"""
BETTER = {
    "setup": "",
    "convert": "x",
    "optimizer": "torch.optim.AdamW(model.parameters(), lr=0.1)",
    "loss": "nn.functional.binary_cross_entropy_with_logits(model(x), y)",
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"setup": "torch.set_default_dtype(torch.float64)"},
        {"convert": "x.float().double()"},
        {"convert": "x.to(torch.float64)"},
        {"convert": "x.type(torch.DoubleTensor)"},
        {"loss": "nn.HuberLoss()(model(x), y)"},
        {"loss": "nn.BCELoss(weight=torch.ones(1).double())(model(x).sigmoid(), y)"},
        {"loss": "((model(x).double() - y) ** 2).mean()"},
        {"loss": "nn.functional.mse_loss(model(x, state={'h': [x]}), target=y)"},
        {"optimizer": "torch.optim.LBFGS(model.parameters(), max_iter=3)"},
    ],
    ids=lambda changes: next(iter(changes.values()), "plain"),
)
def test_training_goes_on_in_float32_with_the_same_losses(
    changes: dict[str, str], tmp_path: Path
) -> None:
    """Without a loader the first step has been taken in float64 when models are found."""
    program = LOOP.format(**BETTER | changes)
    plain = run_with(program, {}, tmp_path / "plain")
    ran = run_with(program, {"single-precision": {}}, tmp_path / "single")
    assert ran.returncode == 0, ran.stderr
    assert ran.applied["single-precision"]["state"] == "applied", ran.applied
    assert not ran.probe_errors
    head, losses = ran.stdout.splitlines()
    assert "torch.float32'] torch.float32" in head or "'torch.float64'] torch.float32" in head
    assert "torch.float32" in head.split("[")[1], "the model never computed in float32"
    assert head.split()[0] == plain.stdout.split()[0], "the default comes back after the backward"
    before = [float(loss) for loss in plain.stdout.splitlines()[1].split()]
    assert [float(loss) for loss in losses.split()] == pytest.approx(before, abs=2e-3)


def test_what_is_meant_to_be_precise_is_refused(tmp_path: Path) -> None:
    program = LOOP.format(**BETTER).replace("torch.ones(1))", "torch.ones(1) * 1j)")
    program = program.replace("model(x), y", "model(x).abs(), y")
    ran = run_with(program, {"single-precision": {}}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    applied = ran.applied["single-precision"]
    assert applied["state"] == "refused" and "complex" in applied["reason"]
