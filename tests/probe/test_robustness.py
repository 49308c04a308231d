"""What fails in the probe or a fix never stops the program; models stay what they are."""

from __future__ import annotations

from pathlib import Path

import probed
import pytest
from probed import run_plain, run_probed
from test_fidelity import write

from torchdoctor.probe import step_log

pytestmark = pytest.mark.slow

TRAIN = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2):
    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
print("trained")
"""
# Long enough for writing to fall due within the hooks and not only at the exit.
SLOWLY = TRAIN.replace("for x in", "import time; time.sleep(0.5)\nfor x in")

FAILING = {
    "no apply": ("", "failed"),
    "syntax": ("def apply(:", "failed"),
    "apply": ("def apply(torch, settings, program): 1 / 0", "failed"),
    "refuses": ("def apply(torch, settings, program): program.refuse('no')", "refused"),
    "loader": ("def apply(t, s, program): program.before_loader(lambda a: 1 / 0)", "failed"),
    "optimizer": (
        "def apply(t, s, program): program.before_optimizer(lambda c, a: 1 / 0)",
        "failed",
    ),
    "model": ("def apply(t, s, program): program.on_model(lambda m: 1 / 0)", "failed"),
    "forward": (
        "def apply(t, s, program): program.at('arguments', lambda m, a, k: 1 / 0)",
        "failed",
    ),
    "context": ("def apply(t, s, program): program.around_forward(lambda m: 1 / 0)", "failed"),
    "context enters": (
        """
class Bad:
    def __enter__(self): 1 / 0
    def __exit__(self, *a): pass
def apply(t, s, program): program.around_forward(lambda m: Bad())
""",
        "failed",
    ),
    "context leaves": (
        """
class Bad:
    def __enter__(self): pass
    def __exit__(self, *a): 1 / 0
def apply(t, s, program): program.around_forward(lambda m: Bad())
""",
        "failed",
    ),
    "step": ("def apply(t, s, program): program.at('step', lambda: 1 / 0)", "failed"),
    "first": ("def apply(t, s, program): program.at_first_batch(lambda: 1 / 0)", "failed"),
    "nothing": ("def apply(torch, settings, program): pass", "pending"),
    "applied": ("def apply(t, s, program): program.applied(n=s['n'])", "applied"),
}


def test_no_fix_that_fails_stops_the_program_or_another_fix(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    fixes = []
    for name, (code, _) in FAILING.items():
        file = tmp_path / f"{name.replace(' ', '_')}_fix.py"
        file.write_text(code)
        fixes.append({"id": name, "file": str(file), "settings": {"n": 4}})
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True, fixes=fixes)
    assert (run.returncode, run.stdout) == (0, "trained\n"), run.stderr
    assert run.stderr == ""
    found = {row["fix"]: row for row in run.main["fixes"]}
    assert {name: row["state"] for name, row in found.items()} == {
        name: state for name, (_, state) in FAILING.items()
    }
    for name, row in found.items():
        assert row["why"] or row["state"] in ("applied", "pending"), name
    assert found["applied"]["details"] == {"n": 4}
    assert run.count(step_log.FORWARD_BEGIN) == run.count(step_log.FORWARD_END) == 4


@pytest.mark.parametrize("plan", ["{", "{}", '{"channel": "/nonexistent/folder"}'])
def test_broken_plan_does_not_stop_the_program(
    plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(plan)
    monkeypatch.setattr(probed, "write_plan", lambda *_, **__: path)
    (tmp_path / "train.py").write_text(SLOWLY)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "trained\n", "")


def test_channel_that_vanishes_does_not_stop_the_program(tmp_path: Path) -> None:
    code = SLOWLY.replace(
        "for x in", "import shutil, os; shutil.rmtree(os.environ['GONE'])\nfor x in"
    )
    (tmp_path / "train.py").write_text(code)
    gone = {"GONE": str(tmp_path / "channel")}
    run = run_probed(["train.py"], tmp_path, tmp_path, env=gone, forked=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "trained\n", "")


def test_whole_model_is_pickled_and_copied_as_ever(tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        """
        import copy, io, pickle, torch
        torch.manual_seed(0)
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__(); self.layer = torch.nn.Linear(2, 2)
            def forward(self, x):
                self.last_loss = self.layer(x).sum(); return self.last_loss
        model = Net()
        o = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2):
            o.zero_grad(); model(x).backward(); o.step()
        print(model.last_loss.item(), type(model) is Net, "__call__" in vars(model))
        model.last_loss = None
        state = pickle.dumps(model)
        print(b"torchdoctor" in state, b"Net" in state)
        print(sorted(vars(pickle.loads(state))), copy.deepcopy(model)(x).item())
        file = io.BytesIO(); torch.save(model, file); file.seek(0)
        torch.serialization.add_safe_globals([Net, torch.nn.Linear, set])
        print(type(torch.load(file, weights_only=True)).__name__)
        """,
    )
    plain = run_plain(["train.py"], tmp_path, forked=True)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert plain.returncode == 0, plain.stderr
    assert (run.returncode, run.stdout, run.stderr) == (0, plain.stdout, plain.stderr)


def test_overridden_train_and_layers_in_a_list(tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        """
        import torch
        class Layer(torch.nn.Linear):
            def __init__(self, *a):
                super().__init__(*a); self.o = torch.optim.Adam(self.parameters())
            def train(self, pos, neg):
                for _ in range(3):
                    self.o.zero_grad(); (self(pos) - self(neg)).mean().backward(); self.o.step()
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__(); self.layers = [Layer(2, 2), Layer(2, 2)]
            def train(self, pos, neg):
                for layer in self.layers: layer.train(pos, neg)
        Net().train(torch.ones(1, 2), torch.zeros(1, 2))
        """,
    )
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    assert run.count(step_log.OPTIMIZER_END) == 6
    assert len(run.main["optimizers"]) == 2


def test_losses_that_are_only_stood_for_are_not_read(tmp_path: Path) -> None:
    setup = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
numbers = ShapeEnv()
stand_in = FakeTensorMode(shape_env=numbers).from_tensor(torch.ones(2, requires_grad=True))
"""
    checked = "print(numbers.pending_fresh_unbacked_symbols)"
    (tmp_path / "train.py").write_text(setup + TRAIN + "stand_in.sum().backward()\n" + checked)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "trained\n[]\n", "")
    assert run.count(step_log.BACKWARD_END) == 5


COMPILED = """
import torch
torch.manual_seed(0)
graphs = []
def backend(graph, inputs):
    graphs.append(len(graph.graph.nodes)); return graph.forward
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    def forward(self, x):
        return self.body(x).relu()
def train(model, compiled):
    torch._dynamo.reset()
    torch.manual_seed(0)
    other = torch.nn.Sequential(torch.nn.Linear(4, 4))  # a root of a class that is nested above
    made = compiled(model)
    model = model if made is None else made
    o = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2):
        o.zero_grad(); other(x); loss = model(x).sum(); loss.backward(); o.step()
        print(loss.item())
    print(graphs)
sequential = torch.nn.Sequential
def nested():
    return sequential(torch.nn.Linear(4, 4), sequential(torch.nn.Linear(4, 2)))
compile = torch.compile
train(Net(), lambda model: compile(model, backend=backend))
train(Net(), lambda model: compile(model, backend=backend, fullgraph=True))
train(Net(), lambda model: model.compile(backend=backend, fullgraph=True))
train(nested(), lambda model: compile(model, backend=backend, fullgraph=True))
# Torch's own modules are not compiled this way at all: that too must stay so.
train(nested(), lambda model: model.compile(backend=backend))
"""


def test_compiled_models_have_the_same_graphs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPILED)
    plain = run_plain(["train.py"], tmp_path, forked=True)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert plain.returncode == 0, plain.stderr
    assert (run.returncode, run.stdout) == (0, plain.stdout), run.stderr
    assert run.said() == []
    # All but the first of each further model, by which it is noticed.
    assert run.count(step_log.FORWARD_BEGIN) >= 5 * 12 - 8
