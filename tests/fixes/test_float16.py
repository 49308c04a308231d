"""float16 with scaled gradients, in real processes: what the program sees, and what it learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from probed_examples import Ran, run_with

from torchdoctor.edits import ScaledStepEdit, StatementEdit, WithEdit
from torchdoctor.edits.source import edited

pytestmark = pytest.mark.slow


def _autocasts_float16() -> bool:
    """Older torch switches autocast off for float16 on a CPU, with a warning."""
    try:
        with torch.autocast("cpu", dtype=torch.float16):
            x = torch.ones(8, 8)
            return (x @ x).dtype == torch.float16
    except RuntimeError:
        return False


needs_float16 = pytest.mark.skipif(not _autocasts_float16(), reason="no float16 on this CPU")

TRAIN = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(320, 16), torch.randint(0, 4, (320,))
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
losses, norms, dtypes = [], [], set()
for epoch in range(2):
    for x, y in data:
        out = model(x)
        dtypes.add(str(out.dtype))
        loss = torch.nn.functional.cross_entropy(out, y) * SCALE
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
print(json.dumps([losses, norms, sorted(dtypes)]))
"""


def float16(program: str, folder: Path) -> Ran:
    ran = run_with(program, {"mixed-precision": {"dtype": "float16"}}, folder)
    assert ran.returncode == 0, ran.stderr
    assert not ran.probe_errors
    return ran


@needs_float16
@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_it_learns_the_same_and_clipping_sees_the_gradients_as_they_are(
    scale: float, tmp_path: Path
) -> None:
    """With a loss of 1e-5, unscaled float16 gradients would be zero (below 6e-8)."""
    program = TRAIN.replace("SCALE", str(scale))
    plain = json.loads(run_with(program, {}, tmp_path / "plain").stdout)
    ran = float16(program, tmp_path / "float16")
    assert ran.applied["mixed-precision"]["state"] == "applied"
    losses, norms, dtypes = json.loads(ran.stdout)
    assert dtypes == ["torch.float16"]
    assert losses == pytest.approx(plain[0], rel=0.02)
    assert norms == pytest.approx(plain[1], rel=0.1)
    assert max(norms) > 0


ACCUMULATE = """
import torch
torch.manual_seed(0)
model, other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD(other.parameters(), lr=0.1)
for step in range(3):
    for micro in range(4):
        x = torch.randn(4, 8)
        (other(model(x)).float().square().mean() / 4).backward()
    grads = [p.grad.abs().sum().item() for p in (*model.parameters(), *other.parameters())]
    optimizer.step(); second.step()
    optimizer.zero_grad(set_to_none=step == 1); second.zero_grad()
print(" ".join("%.6f" % g for g in grads))
"""


@needs_float16
def test_micro_batches_and_two_optimizers_add_up_unscaled(tmp_path: Path) -> None:
    plain = run_with(ACCUMULATE, {}, tmp_path / "plain")
    ran = float16(ACCUMULATE, tmp_path / "float16")
    got = [float(x) for x in ran.stdout.split()]
    assert got == pytest.approx([float(x) for x in plain.stdout.split()], rel=0.02)


OVERFLOW = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
stepped = []
for number in range(5):
    before = model.weight.detach().clone()
    factor = 1e36 if number == 1 else 1.0  # its scaled gradients are infinite
    (model(torch.ones(4, 4)).float().mean() * factor).backward()
    optimizer.step()
    assert model.weight.grad is not None
    optimizer.zero_grad()
    stepped.append(not torch.equal(before, model.weight))
print(stepped, int(optimizer.state[model.weight]["step"]), bool(model.weight.isfinite().all()))
"""


@needs_float16
def test_a_step_whose_gradients_overflow_is_left_out_and_the_scale_is_halved(
    tmp_path: Path,
) -> None:
    ran = float16(OVERFLOW, tmp_path)
    assert ran.stdout == "[True, False, True, True, True] 4 True"
    details = ran.applied["mixed-precision"]["details"]
    assert (details["skipped_steps"], details["scale"]) == (1, 2.0**15)


UNSAFE = {
    "scales-gradients-itself": """
scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    scaler.scale(model(x).float().mean()).backward()
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
""",
    "backward-differentiated": """
for _ in range(3):
    model(x).float().square().mean().backward(create_graph=True)
    optimizer.step(); optimizer.zero_grad()
""",
    "no-optimizer-to-hold-back": """
import gc
del optimizer; gc.collect()
for _ in range(3):
    model(x).float().mean().backward()
""",
    "gradients-of-inputs": """
for _ in range(3):
    attacked = x.clone().requires_grad_()
    model(attacked).float().mean().backward()
    optimizer.step(); optimizer.zero_grad()
""",
    "gradients-within-step": """
def closure():
    optimizer.zero_grad()
    loss = model(x).float().mean()
    loss.backward()
    return loss
for _ in range(3):
    optimizer.step(closure)
""",
}


@pytest.mark.parametrize("why", UNSAFE)
def test_what_cannot_be_unscaled_is_refused(why: str, tmp_path: Path) -> None:
    setup = """
import torch
x = torch.randn(4, 4)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
    ran = float16(setup + UNSAFE[why], tmp_path)
    applied = ran.applied["mixed-precision"]
    assert applied["state"] == "refused", applied
    assert applied["why"]["fact"] == why


LOOP = """import torch

def train(model, loader, optimizer, scheduler):
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        loss.backward()  # learn
CLIP        optimizer.step()
        scheduler.step()
"""
CLIPPED = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"


def _edited(source: str) -> str | None:
    edits = [
        ScaledStepEdit(file="", line=7, scaler="gradient_scaler"),
        WithEdit(file="", line=5, callee="model", before=7, context="torch.autocast('cpu')"),
        StatementEdit(file="", statement='gradient_scaler = torch.amp.GradScaler("cpu")'),
    ]
    text: str | None = source
    for edit in edits:
        text = edited(text, edit) if text is not None else None
        assert text is None or edited(text, edit) == text, "the second time changes nothing"
    return text


@pytest.mark.parametrize("clip", ["", CLIPPED])
def test_the_edit_makes_the_step_go_through_a_scaler(clip: str) -> None:
    unscaled = "        gradient_scaler.unscale_(optimizer)\n" if clip else ""
    assert (
        _edited(LOOP.replace("CLIP", clip))
        == f"""import torch

gradient_scaler = torch.amp.GradScaler("cpu")

def train(model, loader, optimizer, scheduler):
    for x, y in loader:
        with torch.autocast('cpu'):
            out = model(x)
            loss = criterion(out, y)
        gradient_scaler.scale(loss).backward()  # learn
{unscaled}{clip}        gradient_scaler.step(optimizer)
        gradient_scaler.update()
        scheduler.step()
"""
    )


@pytest.mark.parametrize(
    "other",
    [
        "        if step % 4 == 0:\n            optimizer.step()\n",  # not one step a backward
        "        optimizer.step()\n        optimizer_b.step()\n",
        "        optimizer.step(closure)\n",
        "        gradient_scaler = None\n        optimizer.step()\n",
        # The next `unscale_()` would be refused: `update()` was passed over.
        "        if bad(model):\n            continue\n        optimizer.step()\n",
        "        if bad(model):\n            return\n        optimizer.step()\n",
        "        if bad(model):\n            break\n        optimizer.step()\n",
        "        if bad(model):\n            raise ValueError\n        optimizer.step()\n",
    ],
)
def test_a_step_that_is_not_plain_is_not_edited(other: str) -> None:
    source = LOOP.replace("CLIP        optimizer.step()\n", other)
    assert edited(source, ScaledStepEdit(file="", line=7, scaler="gradient_scaler")) is None
