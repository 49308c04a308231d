"""Forward work that no module's call shows is no preparation of a batch: real programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from observed_programs import observe, recorder_of, recording_of

from torchdoctor.checks import work_outside_model
from torchdoctor.observe.shares import shares, with_inline_preparation
from torchdoctor.queries.stacks import inline_preparation, share_showing
from torchdoctor.schema import Recording

pytestmark = pytest.mark.slow

SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
X, Y = torch.randn(256, 256), torch.randint(0, 10, (256,))
w1 = (0.05 * torch.randn(256, 512)).requires_grad_()
w2 = (0.05 * torch.randn(512, 10)).requires_grad_()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 512), nn.Linear(512, 10)
    def forward(self, x):
        for _ in range(4):
            x = x + torch.tanh(x)
        return self.b(torch.relu(self.a(x)))
def train(model, parameters, get_batch=lambda: (X, Y), steps=60):
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for _ in range(steps):
        x, y = get_batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
def slow_batch():
    sum(i * i for i in range(300_000))
    return X, Y
def mlp(x):
    h = torch.tanh(x @ w1)
    for _ in range(4):
        h = h + F.gelu(h)
    return h @ w2
"""

PROGRAMS = {
    "scripted": "net = torch.jit.script(Net()); train(net, net.parameters())",
    "functional": "train(mlp, [w1, w2])",
    "functional, a loader": """
loader = DataLoader(TensorDataset(X.repeat(60, 1), Y.repeat(60)), batch_size=256)
optimizer = torch.optim.SGD([w1, w2], lr=0.01)
for epoch in range(1):
    for x, y in loader:
        optimizer.zero_grad(); F.cross_entropy(mlp(x), y).backward(); optimizer.step()
""",
    "functional, then a head": """
head = nn.Linear(10, 10)
train(lambda x: head(mlp(x)), [w1, w2, *head.parameters()])
""",
    "updates by hand": """
for _ in range(60):
    F.cross_entropy(mlp(X), Y).backward()
    with torch.no_grad():
        for w in (w1, w2):
            w -= 0.01 * w.grad
            w.grad = None
""",
    ".forward()": "net = Net(); train(net.forward, net.parameters())",
    "functional_call": """
from torch.func import functional_call
net = Net(); own = dict(net.named_parameters())
train(lambda x: functional_call(net, own, (x,)), own.values())
""",
    "DDP": """
import os, tempfile
import torch.distributed as dist
store = dist.FileStore(tempfile.mktemp(), 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
net = nn.parallel.DistributedDataParallel(Net()); train(net, net.parameters())
dist.destroy_process_group()
""",
    "compiled": """
net = Net(); train(torch.compile(net, backend="aot_eager"), net.parameters())
""",
    "compiled function": 'train(torch.compile(mlp, backend="aot_eager"), [w1, w2])',
    "the forward at the end of the loop": """
net = Net(); optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loss = F.cross_entropy(mlp(X), Y)
for _ in range(60):
    optimizer.zero_grad(); loss.backward(); optimizer.step(); w1.grad = w2.grad = None
    loss = F.cross_entropy(mlp(X), Y) + 0 * net.b.bias.sum()
""",
}


def observed(program: str, tmp_path: Path) -> Recording:
    found = recording_of(observe(recorder_of(SETUP + program, tmp_path)))
    known = shares(found.steps, None, share_showing(found, "computes"))
    return with_inline_preparation(replace(found, shares=known))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_forward_is_no_preparation(name: str, tmp_path: Path) -> None:
    found = observed(PROGRAMS[name], tmp_path)
    preparing = inline_preparation(found)
    # Taken for preparation it would be most of the step.
    assert preparing is None or preparing.share < 0.25, preparing
    # The step log alone, without a trace: a loss after the module's call is "other".
    assert found.shares.cpu is not None and found.shares.cpu > 0.5, found.shares


@pytest.mark.parametrize(
    "program",
    [
        "train(mlp, [w1, w2], slow_batch)",
        "net = Net(); train(net, net.parameters(), slow_batch)",
    ],
    ids=["functional", "module"],
)
def test_preparation_is_still_found(program: str, tmp_path: Path) -> None:
    found = observed(program, tmp_path)
    assert found.shares.data_loader is not None and found.shares.data_loader > 0.3, found.shares


ROLLOUTS = """
import time
class Environment:
    def step(self, action):
        return sum(i * i for i in range(30_000))
net, env = nn.Linear(8, 2), Environment()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for episode in range(60):
    kept = []
    for _ in range(4):
        drawn = torch.distributions.Categorical(logits=net(torch.ones(8)))
        action = drawn.sample()
        kept.append(drawn.log_prob(action))
        env.step(action)
    optimizer.zero_grad()
    (-torch.stack(kept).mean()).backward()
    optimizer.step()
"""


def test_rollouts_are_work_outside_the_model(tmp_path: Path) -> None:
    found = observed(ROLLOUTS, tmp_path)
    (finding,) = work_outside_model.CHECK.findings(found)
    assert finding.share_of_step is not None and finding.share_of_step > 0.5
    assert finding.location is not None
    text = (tmp_path / "program" / "train.py").read_text().splitlines()
    assert text[finding.location.line - 1].strip().startswith(("env.step", "return sum"))
