"""Real programs of each structure: observed, then timed with the boundary that was found.

What the tool chose from the whole sequence must be what the probe finds again at run time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from observed_programs import observe, recorder_of, timed

from torchdoctor.observe.window import Window

pytestmark = pytest.mark.slow

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, batch_size=4)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def loss_of(x, y):
    return ((model(x) - y) ** 2).mean()
"""

# name -> (loop, kind of the boundary, iterations in all, samples an iteration)
PROGRAMS = {
    "validation between epochs": (
        """
validation = DataLoader(data, batch_size=16)
for epoch in range(5):
    model.train()
    for x, y in loader:
        optimizer.zero_grad(); loss_of(x, y).backward(); optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in validation:
            loss_of(x, y)
""",
        "loader",
        40,
        4,
    ),
    "loader made anew": (
        """
for epoch in range(5):
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad(); loss_of(x, y).backward(); optimizer.step()
""",
        "loader",
        40,
        4,
    ),
    "gan": (
        """
other = nn.Linear(1, 1)
second = torch.optim.Adam(other.parameters())
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        second.zero_grad(); other(y).mean().backward(); other(model(x).detach()).mean().backward()
        second.step()
        optimizer.zero_grad(); other(model(x)).mean().backward()
        if i: optimizer.step()
""",
        "loader",
        24,
        4,
    ),
    "accumulation": (
        """
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss_of(x, y).backward()
        if i % 4 == 3: optimizer.step(); optimizer.zero_grad()
""",
        "loader",
        24,
        4,
    ),
    "lbfgs without a loader": (
        """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=12, tolerance_change=0.0)
x, y = data.tensors
def closure():
    optimizer.zero_grad(); loss = loss_of(x, y); loss.backward(); return loss
for _ in range(4):
    optimizer.step(closure)
""",
        "backward",
        None,
        None,
    ),
    "get_batch with micro-batches": (
        """
optimizer = torch.optim.AdamW(model.parameters())
def get_batch():
    rows = torch.randint(0, 32, (4,))
    return data.tensors[0][rows], data.tensors[1][rows]
for _ in range(25):
    optimizer.zero_grad()
    for micro in range(3):
        loss_of(*get_batch()).backward()
    optimizer.step()
""",
        "optimizer",
        25,
        None,
    ),
    "updates by hand": (
        """
x, y = data.tensors
for _ in range(30):
    model.zero_grad()
    loss_of(x, y).backward()
    with torch.no_grad():
        for p in model.parameters(): p -= 0.01 * p.grad
""",
        "backward",
        30,
        None,
    ),
    "rollouts": (
        """
for episode in range(4):
    with torch.no_grad():
        for _ in range(20): model(torch.randn(1, 4))
    for _ in range(8):
        optimizer.zero_grad(); loss_of(*data.tensors).backward(); optimizer.step()
""",
        "optimizer",
        32,
        None,
    ),
    "explicit steps": (
        """
import torchdoctor
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss_of(x, y).backward(); optimizer.step(); optimizer.zero_grad()
        if i % 2: torchdoctor.step(8)
""",
        "explicit",
        12,
        8,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_structure(name: str, tmp_path: Path) -> None:
    loop, kind, iterations, samples = PROGRAMS[name]
    recorder = recorder_of(SETUP + loop, tmp_path)
    seen = observe(recorder)

    assert seen.steps_found.boundary.kind == kind
    assert seen.steps.program_ended
    if iterations is not None:
        # The first iteration begins before anything was learned, so no boundary is seen there.
        assert seen.steps.total_steps_seen == iterations - 1
    if samples is not None:
        assert seen.steps.samples_per_step == pytest.approx(samples)
    assert (seen.steps.evaluation_s > 0) == (name == "validation between epochs")
    phases = ("data_wait", "h2d_copy", "forward", "backward", "optimizer", "other")
    total = sum(getattr(seen.steps, f"{phase}_s") for phase in phases)
    assert total == pytest.approx(seen.steps.mean_s)

    window = Window(warmup_steps=3, measure_steps=6, max_window_s=60.0)
    timing = timed(recorder, seen, window)
    assert timing.ended == "measured", timing.why
    assert len(timing.step_s) == 6
    assert sum(timing.step_s) == pytest.approx(timing.window_s)
    assert all(loss is not None for loss in timing.losses)
    if samples is not None:
        assert timing.samples == pytest.approx(6 * samples)
    if kind == "loader":
        assert len(timing.fingerprints) == 3 * 4  # the warm-up's batches
