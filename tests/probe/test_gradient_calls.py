"""Programs that compute gradients without a backward pass, or within the loss, as real processes.

Each is observed as `torchdoctor run` does it, then timed with what was found: an update written by
hand that is not seen, or a gradient penalty that is taken for a step of its own, would make every
figure of the report one of something else.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from observed_programs import observe, recorder_of, recording_of, timed
from probed import run_probed

from torchdoctor.observe.window import Window
from torchdoctor.probe import step_log
from torchdoctor.queries.stacks import rows_showing
from torchdoctor.schema.errors import NoStepFound

pytestmark = pytest.mark.slow

SETUP = """
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = DataLoader(data, batch_size=4)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
parameters = list(model.parameters())
def loss_of(x, y):
    return ((model(x) - y) ** 2).mean()
def update(gradients):
    with torch.no_grad():
        for p, g in zip(parameters, gradients): p -= 0.01 * g
"""
FUNCTIONAL = """
weights = {name: p.detach() for name, p in model.named_parameters()}
def loss_at(weights, x, y):
    return ((functional_call(model, weights, (x,)) - y) ** 2).mean()
"""

# name -> (loop, kind of the boundary, what is learned by, iterations, backwards in each)
PROGRAMS = {
    "updates by hand": (
        """
for _ in range(30):
    update(torch.autograd.grad(loss_of(*data.tensors), parameters))
""",
        ("backward", "autograd.grad", 30, 1.0),
    ),
    "updates by hand with a loader": (
        """
for epoch in range(4):
    for x, y in loader: update(torch.autograd.grad(outputs=loss_of(x, y), inputs=parameters))
    model.eval()
    with torch.no_grad():
        for x, y in loader: loss_of(x, y)
    model.train()
""",
        ("loader", "autograd.grad", 32, 1.0),
    ),
    "gradients handed to an optimizer": (
        """
optimizer = torch.optim.SGD(parameters, lr=0.01)
for epoch in range(4):
    for x, y in loader:
        for p, g in zip(parameters, torch.autograd.grad(loss_of(x, y), parameters)): p.grad = g
        optimizer.step()
""",
        ("loader", "autograd.grad", 32, 1.0),
    ),
    "derivatives in the loss, updates by hand": (
        """
for _ in range(30):
    x = torch.randn(8, 4, requires_grad=True)
    u = model(x)
    slope, = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
    bend, = torch.autograd.grad(slope[:, 0].sum(), x, None, True, True)
    loss = (bend[:, 0] - slope[:, 1] + u[:, 0]).square().mean()
    update(torch.autograd.grad(loss, parameters))
""",
        ("backward", "autograd.grad", 30, 1.0),
    ),
    "torch.func": (
        FUNCTIONAL
        + """
for epoch in range(4):
    for x, y in loader:
        gradients, loss = grad_and_value(loss_at)(weights, x, y)
        weights = {name: w - 0.01 * gradients[name] for name, w in weights.items()}
""",
        ("loader", "torch.func", 32, 1.0),
    ),
    "torch.func for inner and outer steps": (
        FUNCTIONAL
        + """
def outer(weights, x, y):
    for _ in range(2):
        inner = grad(loss_at)(weights, x, y)
        weights = {name: w - 0.01 * inner[name] for name, w in weights.items()}
    return loss_at(weights, x, y)
for _ in range(30):
    gradients = grad(outer)(weights, *data.tensors)
    weights = {name: w - 0.01 * gradients[name] for name, w in weights.items()}
""",
        ("backward", "torch.func", 30, 1.0),
    ),
    "gradient penalty": (
        """
critic = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
first = torch.optim.Adam(critic.parameters())
second = torch.optim.Adam(parameters)
for epoch in range(4):
    for x, y in loader:
        fake = model(x)
        mixed = (y + fake.detach()).requires_grad_()
        slope, = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(fake.detach()).mean() - critic(y).mean() + (slope.norm() - 1).square()
        first.zero_grad(); loss.backward(); first.step()
        second.zero_grad(); (-critic(model(x)).mean()).backward(); second.step()
""",
        ("loader", "backward", 32, 2.0),
    ),
    "physics-informed": (
        """
optimizer = torch.optim.Adam(parameters)
for _ in range(30):
    x = torch.randn(8, 4, requires_grad=True)
    u = model(x)
    slope, = torch.autograd.grad(u.sum(), x, create_graph=True)
    bend, = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
    optimizer.zero_grad(); (bend[:, 0] - slope[:, 1]).square().mean().backward()
    optimizer.step()
""",
        ("optimizer", "backward", 30, 1.0),
    ),
    "adversarial examples": (
        """
for _ in range(30):
    x, y = data.tensors[0].clone().requires_grad_(), data.tensors[1]
    away, = torch.autograd.grad(loss_of(x, y), x)
    model.zero_grad(); loss_of((x + 0.1 * away.sign()).detach(), y).backward()
    update([p.grad for p in parameters])
""",
        ("backward", "backward", 30, 1.0),
    ),
    "meta-learning": (
        """
optimizer = torch.optim.Adam(parameters)
for _ in range(30):
    weights = dict(model.named_parameters())
    for _ in range(2):
        loss = functional_call(model, weights, (data.tensors[0],)).square().mean()
        inner = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {n: w - 0.01 * g for (n, w), g in zip(weights.items(), inner)}
    optimizer.zero_grad()
    functional_call(model, weights, (data.tensors[0],)).square().mean().backward()
    optimizer.step()
""",
        ("optimizer", "backward", 30, 1.0),
    ),
    "explicit steps": (
        """
import torchdoctor
for _ in range(30):
    update(torch.autograd.grad(loss_of(*data.tensors), parameters))
    torchdoctor.step(32)
""",
        ("explicit", "autograd.grad", 30, 1.0),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_structure(name: str, tmp_path: Path) -> None:
    loop, (kind, learned_by, iterations, backwards) = PROGRAMS[name]
    recorder = recorder_of(SETUP + loop, tmp_path)
    seen = observe(recorder)
    assert seen.steps_found.boundary.kind == kind
    assert seen.steps_found.boundary.learned_by == learned_by
    assert seen.steps.total_steps_seen == iterations - 1
    assert seen.steps.backwards_per_step == pytest.approx(backwards)
    # Without it the report would look for the cost of a backward in the program's own lines.
    assert seen.steps.backward_s > 0
    assert seen.processes[0].models, "its model was not found"

    window = Window(warmup_steps=3, measure_steps=6, max_window_s=60.0)
    timing = timed(recorder, seen, window)
    assert timing.ended == "measured", timing.reason
    assert len(timing.step_s) == 6
    # Whether a fix changes training is told by the loss at each backward.
    assert len(timing.losses) >= 6
    assert all(loss is not None for loss in timing.losses)


def test_a_penalty_adds_no_losses_to_those_of_backward_passes(tmp_path: Path) -> None:
    loop, _ = PROGRAMS["physics-informed"]
    recorder = recorder_of(SETUP + loop, tmp_path)
    window = Window(warmup_steps=3, measure_steps=6, max_window_s=60.0)
    timing = timed(recorder, observe(recorder), window)
    assert len(timing.losses) == 3 + 6 + 1  # of the warm-up, the window, and its first boundary


def test_a_gradient_inside_a_model_leaves_what_follows_in_its_forward(tmp_path: Path) -> None:
    """Forces of a potential: samples of stacks after the call are no work outside the model."""
    loop = """
def busy():
    number = 0
    for i in range(200_000): number += i
class Forces(nn.Module):
    def __init__(self):
        super().__init__(); self.energy = model
    def forward(self, x):
        x = x.requires_grad_()
        force, = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        busy()
        return force
forces = Forces()
optimizer = torch.optim.SGD(forces.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad(); (forces(x) - y).square().mean().backward(); optimizer.step()
"""
    (tmp_path / "train.py").write_text(SETUP + loop)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True, sample_stacks=True)
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    assert run.count(step_log.GRADIENT_BEGIN) == run.count(step_log.GRADIENT_END) == 24
    assert run.count(step_log.BACKWARD_BEGIN) == 24
    phases = {row["phase"] for row in run.main["stacks"] if row["leaf_function"] == "busy"}
    assert phases == {"forward"}


def test_what_stands_behind_the_models_call_prepares_no_batch(tmp_path: Path) -> None:
    """A running average of the weights was told as waiting for data."""
    loop = """
def busy():
    number = 0
    for i in range(200_000): number += i
def average():
    busy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    busy()  # the batch
    x = torch.randn(4, 4)
    model(x).mean().backward()
    optimizer.step()
    average()
"""
    (tmp_path / "train.py").write_text(SETUP + loop)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True, sample_stacks=True)
    assert run.returncode == 0, run.stderr
    busy = [row for row in run.main["stacks"] if row["leaf_function"] == "busy"]
    assert {row["behind_forward"] for row in busy} == {True, False}
    assert sum(row["count"] for row in busy if row["behind_forward"]) > 0


def test_updates_by_hand_are_no_preparation_of_batches(tmp_path: Path) -> None:
    """Told to move them into a DataLoader, a user would look for something that is not there."""
    loop = """
import time
def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end: pass
for _ in range(40):
    spin(0.004)
    gradients = torch.autograd.grad(loss_of(*data.tensors), parameters)
    update(gradients)
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end: pass
"""
    seen = observe(recorder_of(SETUP + loop, tmp_path))
    preparing = rows_showing(recording_of(seen), "prepares")
    assert "spin" in {row.location.function for row in preparing}
    wrong = ("gradients", "update", "end =", "while time", "for p, g", "with torch.no_grad")
    assert not [
        row.text
        for row in preparing
        if row.location.function != "spin" and row.text.startswith(wrong)
    ]


def test_what_is_called_is_still_torchs(tmp_path: Path) -> None:
    """Nested calls, failures, batched gradients, other threads, compiled functions."""
    loop = """
import inspect, threading
print(inspect.signature(torch.autograd.grad), torch.autograd.grad.__module__)
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return 2 * x
    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x = torch.ones(3, requires_grad=True)
            return g * torch.autograd.grad((2 * x).sum(), x)[0][:1]
x = torch.ones(1, requires_grad=True)
print(torch.autograd.grad(Doubled.apply(x), x))
Doubled.apply(x).backward()
print(x.grad)
try:
    torch.autograd.grad(torch.ones(1), x)
except RuntimeError as error:
    print(type(error).__name__)
try:
    torch.autograd.grad()
except TypeError as error:
    print(error)
y = torch.stack([2 * x[0], 3 * x[0]])
print(torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True))
def other():
    for _ in range(50): torch.autograd.grad((3 * x).sum(), x)
threads = [threading.Thread(target=other) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(vmap(grad(lambda v: (v * v).sum()))(torch.ones(2, 3)))
print(torch.compile(grad(lambda v: (v * v).sum()), backend="aot_eager")(torch.ones(3)))
compiled = torch.compile(model, backend="aot_eager")
print(torch.autograd.grad(compiled(data.tensors[0]).sum(), parameters)[0])
"""
    (tmp_path / "train.py").write_text(SETUP + loop)
    boundary = {"kind": "explicit", "ident": 0, "every": 1}
    plain = run_probed(
        ["train.py"], tmp_path, tmp_path, forked=True, phases=False, boundary=boundary
    )
    for folder, changes in (
        ("observed", {}),
        ("timed", {"phases": False, "boundary": {**boundary, "learned_by": "autograd.grad"}}),
        ("profiled", {"boundary": {**boundary, "learned_by": "torch.func"}}),
    ):
        (tmp_path / folder).mkdir()
        run = run_probed(["train.py"], tmp_path, tmp_path / folder, forked=True, **changes)
        assert run.returncode == 0, run.stderr
        assert run.stdout == plain.stdout
        assert run.said() == []
        assert run.count(step_log.BACKWARD_BEGIN) <= run.count(step_log.BACKWARD_END)


HIDDEN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=4)
small = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=1)
weights = torch.zeros(4, 1)
for epoch in range(4):
    for x, y in loader: weights += 0.001 * x.T @ (y - x @ weights)
"""


def test_who_says_that_batches_are_steps_is_believed(tmp_path: Path) -> None:
    """A rule of its own, or a whole step that is compiled, shows no hook that it learns."""
    recorder = recorder_of(HIDDEN, tmp_path)
    seen = observe(recorder, "loader")
    assert seen.steps_found.boundary.learned_by == "batch"
    assert seen.steps.total_steps_seen == 31
    assert seen.steps.samples_per_step == pytest.approx(4)
    assert seen.steps.evaluation_s == 0
    window = Window(warmup_steps=3, measure_steps=6, max_window_s=60.0)
    timing = timed(recorder, seen, window)
    assert timing.ended == "measured", timing.reason
    assert timing.samples == pytest.approx(6 * 4)


def test_without_that_word_the_way_to_say_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoStepFound, match=r"32 batches fetched.*--step-on loader"):
        observe(recorder_of(HIDDEN, tmp_path))


def test_who_trains_over_a_loader_is_not_told_by_batches(tmp_path: Path) -> None:
    """With --step-on loader, batches of a validation between are evaluation as before."""
    loop, _ = PROGRAMS["updates by hand with a loader"]
    seen = observe(recorder_of(SETUP + loop, tmp_path), "loader")
    assert seen.steps_found.boundary.learned_by == "autograd.grad"
    assert seen.steps.total_steps_seen == 31
    assert seen.steps.evaluation_s > 0


def test_the_loader_asked_for_without_any_says_what_there_is(tmp_path: Path) -> None:
    loop, _ = PROGRAMS["updates by hand"]
    with pytest.raises(NoStepFound, match=r"30 calls of torch.autograd.grad.*Leave --step-on out"):
        observe(recorder_of(SETUP + loop, tmp_path), "loader")


def test_what_torch_func_does_around_a_function_is_no_preparation(tmp_path: Path) -> None:
    loop = """
step = grad_and_value(loss_at)
for epoch in range(150):
    for x, y in loader:
        gradients, loss = step(weights, x, y)
        weights = {name: w - 0.01 * gradients[name] for name, w in weights.items()}
"""
    seen = observe(recorder_of(SETUP + FUNCTIONAL + loop, tmp_path))
    recording = recording_of(seen)
    around = [row for row in recording.main.stacks if row.text.startswith("gradients, loss")]
    assert {"before_forward", "backward"} <= {row.phase for row in around}
    assert not any(row in around for row in rows_showing(recording, "prepares"))
