"""Programs in which a careless fix would change training or crash: through the real probe."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed_examples import run_with

pytestmark = pytest.mark.slow

FROZEN_NORM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
model.eval()  # fine-tuning with frozen statistics: it trains in evaluation mode
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(16, 4))
for (x,) in torch.utils.data.DataLoader(data, batch_size=2):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("%.6f" % loss.item())
"""

ATTACKED_INPUTS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 4)), batch_size=2)
for (x,) in data:
    model.train()
    model(x).sum().backward()
    optimizer.step()
    model.eval()
    model(x)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
print(gradient.shape)
"""

SHARED_OUTPUT = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)
        self.frozen, self.still = torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3).eval()

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y + self.still(self.frozen(x))  # y is used twice; `still` is frozen

net = Net()
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3, 4, 4)), 2)
for (x,) in data:
    net(x).sum().backward()
print(net.conv.bias is not None, net.frozen.bias is not None)
"""

ITERABLE = """
import torch

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(8.0).reshape(8, 1))

if __name__ == "__main__":
    model, seen = torch.nn.Linear(1, 1), []
    for x in torch.utils.data.DataLoader(Stream(), batch_size=2):
        seen += x.flatten().tolist()
        model(x).sum().backward()
    print(seen)
"""

TWO_LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    data = TensorDataset(torch.ones(8, 1))
    train, valid = DataLoader(data, batch_size=2), DataLoader(data, batch_size=2)
    model = torch.nn.Linear(1, 1)
    for (x,) in train:
        model(x).sum().backward()
    print(train.num_workers, valid.num_workers)
"""

COMPILED_IN_STACK = """
import torch
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()

net = Net()
# A root that torch itself defines, with a child of the root's own class.
root = torch.nn.Sequential(net, torch.nn.Sequential(torch.nn.Conv2d(4, 4, 1)))
optimizer = torch.optim.AdamW(root.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 3, 8, 8)), 4)
for (x,) in data:
    loss = root(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
compiled = root._compiled_call_impl is not None or "forward" in vars(root)  # torch 2.4
print(net.conv.bias is None, compiled, "%.2f" % loss.item())
import torch._dynamo
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


def test_a_model_that_trains_in_evaluation_mode_keeps_its_gradients(tmp_path: Path) -> None:
    without = run_with(FROZEN_NORM, {}, tmp_path / "without")
    ran = run_with(FROZEN_NORM, {"no-grad-evaluation": {}}, tmp_path / "with")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == without.stdout
    assert ran.applied["no-grad-evaluation"]["state"] == "pending"


def test_inputs_that_need_gradients_keep_them_in_evaluation(tmp_path: Path) -> None:
    ran = run_with(ATTACKED_INPUTS, {"no-grad-evaluation": {}}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "torch.Size([2, 4])"
    assert ran.applied["no-grad-evaluation"]["state"] == "applied"


def test_a_bias_that_does_not_cancel_stays(tmp_path: Path) -> None:
    ran = run_with(SHARED_OUTPUT, {"conv-bias-off": {}}, tmp_path)
    assert ran.stdout == "True True", ran.stderr
    assert ran.applied["conv-bias-off"]["state"] == "pending"


def test_an_iterable_dataset_gets_no_workers_by_accident(tmp_path: Path) -> None:
    ran = run_with(ITERABLE, {"loader-workers": {"num_workers": 2}}, tmp_path)
    assert ran.stdout == str([float(i) for i in range(8)])
    assert ran.applied["loader-workers"]["state"] == "pending"


def test_only_the_loader_that_was_named_gets_workers(tmp_path: Path) -> None:
    settings = {"num_workers": 1, "loader": 0}
    ran = run_with(TWO_LOADERS, {"loader-workers": settings}, tmp_path)
    assert ran.stdout == "1 0", ran.stderr


def test_prefetching_without_workers_does_not_apply(tmp_path: Path) -> None:
    fixes = {"prefetch-factor": {"prefetch_factor": 4}, "persistent-workers": {}}
    ran = run_with(TWO_LOADERS, fixes, tmp_path)
    assert ran.stdout == "0 0", ran.stderr
    assert {row["state"] for row in ran.applied.values()} == {"pending"}
    told = {fix: row["why"]["fact"] for fix, row in ran.applied.items()}
    assert told == {"prefetch-factor": "no-workers-to-prepare", "persistent-workers": "no-workers"}


def test_loader_fixes_go_together(tmp_path: Path) -> None:
    fixes = {
        "loader-workers": {"num_workers": 1, "loader": 0},
        "persistent-workers": {"loader": 0},
        "prefetch-factor": {"prefetch_factor": 4, "loader": 0},
    }
    ran = run_with(TWO_LOADERS, fixes, tmp_path)
    assert ran.stdout == "1 0", ran.stderr
    assert {row["state"] for row in ran.applied.values()} == {"applied"}


def test_a_stack_with_compilation(tmp_path: Path) -> None:
    without = run_with(COMPILED_IN_STACK, {}, tmp_path / "without")
    fixes = {
        "torch-compile": {"mode": "default"},
        "conv-bias-off": {},
        "channels-last": {},
        "fused-optimizer": {"fused": True},
    }
    ran = run_with(COMPILED_IN_STACK, fixes, tmp_path / "with")
    assert ran.returncode == 0, ran.stderr
    assert {row["state"] for row in ran.applied.values()} == {"applied"}, ran.applied
    loss = without.stdout.split()[2]
    assert ran.stdout == f"True True {loss}\n1"
    details = ran.applied["torch-compile"]["details"]
    assert details["graph_breaks"] == 0
    assert details["graphs"] == 1


def test_a_convolution_in_a_forward_that_the_program_compiled(tmp_path: Path) -> None:
    compiling = 'root.forward = torch.compile(root.forward, backend="aot_eager")\noptimizer ='
    program = COMPILED_IN_STACK.replace("optimizer =", compiling, 1)
    ran = run_with(program, {"conv-bias-off": {}}, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.applied["conv-bias-off"]["details"] == {"convolutions": 1}, ran.applied
    assert ran.stdout.split()[:2] == ["True", "True"]


DEFAULT_DEVICE = """
import numpy as np, torch
torch.nn.Linear(1, 1)(torch.ones(1)).backward()
print(torch.tensor(np.ones(3)).device)
with torch.device("meta"):
    print(torch.tensor(np.ones(3)).device, torch.tensor([np.ones(2)]).device)
print(torch.tensor(np.ones(3), device="cpu").device)
"""

SCRIPTED = """
import numpy as np, torch
torch.nn.Linear(1, 1)(torch.ones(1)).backward()
def doubled(x):
    return x * torch.tensor([2.0])
print(torch.jit.script(doubled)(torch.ones(1)), torch.tensor(np.ones(1)))
"""


@pytest.mark.parametrize("source", [DEFAULT_DEVICE, SCRIPTED], ids=["default device", "scripted"])
def test_arrays_are_shared_only_where_torch_would_have_put_them(
    source: str, tmp_path: Path
) -> None:
    ran = []
    for name, fixes in (("plain", {}), ("fixed", {"as-tensor": {}})):
        (tmp_path / name).mkdir()
        ran.append(run_with(source, fixes, tmp_path / name))
    plain, fixed = ran
    assert fixed.returncode == plain.returncode == 0, fixed.stderr
    assert fixed.stdout == plain.stdout
    assert fixed.applied["as-tensor"]["state"] == "applied"
