"""Training loops of every shape: the events tell what happened, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from made_tensors import tensor_row
from probed import Probed, run_probed

from torchdoctor.probe import step_log
from torchdoctor.probe.measure.nested import Fingerprints

pytestmark = pytest.mark.slow

SETUP = """
import torch
from torch import nn
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
loader = torch.utils.data.DataLoader(data, batch_size=2)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
"""


def counts(run: Probed) -> dict[str, int]:
    rows = run.events[run.main_pid]
    return {
        "batches": int(((rows[:, 0] == step_log.FETCH_END) & (rows[:, 3] != -1)).sum()),
        "forwards": run.count(step_log.FORWARD_BEGIN),
        "backwards": run.count(step_log.BACKWARD_BEGIN),
        "steps": run.count(step_log.OPTIMIZER_END),
    }


def run_loop(loop: str, tmp_path: Path, **plan: object) -> Probed:
    (tmp_path / "train.py").write_text(SETUP + loop)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True, **plan)
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    for begin, end in ((1, 2), (3, 4), (5, 6), (7, 8), (9, 10)):
        assert run.count(begin) == run.count(end), f"events {begin} and {end} do not pair"
    return run


LOOPS = {
    "plain": (
        """
o = torch.optim.AdamW(model.parameters())
for x, y in loader:
    o.zero_grad(); ((model(x) - y) ** 2).mean().backward(); o.step()
""",
        {"batches": 6, "forwards": 6, "backwards": 6, "steps": 6},
    ),
    "traced": (
        """
traced = torch.jit.trace(model, torch.randn(2, 4))
o = torch.optim.SGD(traced.parameters(), lr=0.1)
for x, y in loader:
    o.zero_grad(); ((traced(x) - y) ** 2).mean().backward(); o.step()
""",
        # Tracing calls what it made once, to check it.
        {"batches": 6, "forwards": 7, "backwards": 6, "steps": 6},
    ),
    "accumulation": (
        """
o = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    model(x).mean().backward()
    if i % 3 == 2: o.step(); o.zero_grad()
""",
        {"batches": 6, "forwards": 6, "backwards": 6, "steps": 2},
    ),
    "gan": (
        """
D = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
og = torch.optim.Adam(model.parameters()); od = torch.optim.Adam(D.parameters())
for x, y in loader:
    od.zero_grad(); D(y).mean().backward(); D(model(x).detach()).mean().backward(); od.step()
    og.zero_grad(); D(model(x)).mean().backward(); og.step()
""",
        {"batches": 6, "backwards": 18, "steps": 12},
    ),
    "by hand": (
        """
for x, y in loader:
    model.zero_grad(); model(x).mean().backward()
    with torch.no_grad():
        for p in model.parameters(): p.add_(p.grad, alpha=-0.1)
""",
        {"batches": 6, "forwards": 6, "backwards": 6, "steps": 0},
    ),
    "no loader": (
        """
o = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    o.zero_grad(); model(torch.randn(2, 4)).mean().backward(); o.step()
""",
        {"batches": 0, "backwards": 5, "steps": 5},
    ),
    "validation between": (
        """
o = torch.optim.SGD(model.parameters(), lr=0.1)
val = torch.utils.data.DataLoader(data, batch_size=6)
for epoch in range(2):
    model.train()
    for x, y in loader: o.zero_grad(); model(x).mean().backward(); o.step()
    model.eval()
    for x, y in val: model(x)
""",
        {"batches": 16, "forwards": 16, "backwards": 12, "steps": 12},
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_events_of_a_loop(name: str, tmp_path: Path) -> None:
    loop, expected = LOOPS[name]
    seen = counts(run_loop(loop, tmp_path))
    assert {key: seen[key] for key in expected} == expected


def test_every_fold_trains_a_model_that_is_seen(tmp_path: Path) -> None:
    """The next model may lie where the last one did, and its class is the same."""
    body = """
for fold in range(4):
    model = nn.Sequential(nn.Linear(4, 2))
    o = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader: o.zero_grad(); model(x).mean().backward(); o.step()
"""
    run = run_loop(body, tmp_path)
    assert run.count(step_log.BACKWARD_END) == 24
    assert run.count(step_log.FORWARD_END) >= 24 - 3  # a fold's first one, by which it is noticed
    assert [m["forwards"] for m in run.main["models"] if m["forwards"]] == [6, 5, 5, 5]


def test_lbfgs_closure_runs_inside_the_step(tmp_path: Path) -> None:
    run = run_loop(
        """
o = torch.optim.LBFGS(model.parameters(), max_iter=4)
x, y = data.tensors
def closure():
    o.zero_grad(); loss = ((model(x) - y) ** 2).mean(); loss.backward(); return loss
for _ in range(3): o.step(closure)
""",
        tmp_path,
    )
    seen = counts(run)
    assert seen["steps"] == 3
    assert seen["backwards"] >= 6
    assert run.main["optimizers"][0]["inside_backwards"] == seen["backwards"]


def test_facts_of_a_small_program(tmp_path: Path) -> None:
    run = run_loop(
        """
torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)
o = torch.optim.AdamW(model.parameters(), lr=0.25)
for x, y in loader:
    o.zero_grad(set_to_none=False); model(x).mean().backward(); o.step()
model.eval()
for x, y in loader: model(x)
model(x[:1])
""",
        tmp_path,
    )
    facts, source = run.main, (tmp_path / "train.py").read_text().splitlines()

    def line_of(text: str) -> int:
        return next(i for i, line in enumerate(source, 1) if text in line)

    loader = facts["loaders"][0]
    assert loader["location"]["line"] == line_of("DataLoader(")
    assert (loader["batch_size"], loader["batches"], loader["samples"]) == (2, 12, 24)
    optimizer = facts["optimizers"][0]
    assert optimizer["location"]["line"] == line_of("AdamW(")
    assert (optimizer["steps"], optimizer["lr"], optimizer["elements"]) == (6, 0.25, 25)
    model = facts["models"][0]
    assert (model["forwards"], model["eval_forwards"], model["linear"]) == (13, 7, 2)
    assert (model["eval_forwards_with_grad"], model["eval_sizes"]) == (7, 2)
    assert model["eval_with_grad_location"]["line"] == line_of("loader: model(x)")
    flags = facts["flags"]
    assert flags["zero_grad_to_zero"] == 6
    assert flags["anomaly_enabled"] and flags["anomaly_location"]["line"] == line_of("anomaly")
    assert flags["num_threads_location"]["line"] == line_of("set_num_threads")


def test_sizes_of_inputs_are_those_of_training(tmp_path: Path) -> None:
    """Words that a model wrote for a look made compiling for all sizes seem the better way."""
    run = run_loop(
        """
o = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.no_grad():
        for size in range(1, 9): model(x.expand(2, 4)[:1].expand(size, 4))
    o.zero_grad(); model(x).mean().backward(); o.step()
""",
        tmp_path,
    )
    assert run.main["models"][0]["input_tensors"] == [[tensor_row(2, 4)]]


def test_loaders_made_anew_are_told_from_those_made_side_by_side(tmp_path: Path) -> None:
    run = run_loop(
        """
o = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    a, b = [torch.utils.data.DataLoader(data, batch_size=2) for _ in range(2)]
    for (x, _), (y, _) in zip(a, b):
        o.zero_grad(); model(x + y).mean().backward(); o.step()
""",
        tmp_path,
    )
    assert [x["iterators_before"] for x in run.main["loaders"]] == [0, 0, 0, 2, 2]


def test_a_compilation_is_not_the_users_anomaly_detection(tmp_path: Path) -> None:
    """torch.compile turns it on while it traces; the report told its users to turn it off."""
    run = run_loop(
        """
o = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model, backend="aot_eager")
for x, y in loader:
    o.zero_grad(); compiled(x).mean().backward(); o.step()
""",
        tmp_path,
    )
    flags = run.main["flags"]
    assert (flags["anomaly_enabled"], flags["anomaly_location"]) == (False, None)


_LOOP = """
o = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
with {around}:
    for x, y in loader:
        o.zero_grad(); model(x).mean().backward(); o.step()
"""
_OFF = [
    "torch.autograd.profiler.profile(enabled=False)",
    "torch.autograd.profiler.emit_nvtx(enabled=False)",
    "torch.autograd.profiler.emit_itt(enabled=False)",
    "torch.autograd.set_detect_anomaly(False)",
    "torch.profiler.profile(schedule=torch.profiler.schedule(wait=99, warmup=1, active=1))",
]


@pytest.mark.parametrize("around", _OFF)
def test_what_is_switched_off_is_not_on(around: str, tmp_path: Path) -> None:
    """A profiler made with enabled=False was the cause of a program's slowness, "high"."""
    flags = run_loop(_LOOP.format(around=around, before=""), tmp_path).main["flags"]
    assert (flags["profiler_on"], flags["profiler_location"]) == (False, None)
    assert (flags["anomaly_enabled"], flags["anomaly_location"]) == (False, None)


def test_anomaly_detection_of_a_first_step_alone_is_off(tmp_path: Path) -> None:
    first = "with torch.autograd.detect_anomaly(): model(torch.ones(2, 4)).mean().backward()"
    source = _LOOP.format(around="torch.enable_grad()", before=first)
    assert not run_loop(source, tmp_path).main["flags"]["anomaly_enabled"]


def test_anomaly_detection_around_each_step_is_on(tmp_path: Path) -> None:
    source = """
o = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autograd.detect_anomaly():
        o.zero_grad(); model(x).mean().backward(); o.step()
"""
    assert run_loop(source, tmp_path).main["flags"]["anomaly_enabled"]


@pytest.mark.parametrize("kind", ["torch.autograd.profiler", "torch.profiler"])
def test_a_profiler_that_records_is_on(kind: str, tmp_path: Path) -> None:
    source = f"profiler = {kind}.profile(); profiler.__enter__()\n"
    source += _LOOP.format(around="torch.enable_grad()", before="")
    flags = run_loop(source, tmp_path).main["flags"]
    assert flags["profiler_on"] and flags["profiler_location"] is not None


def test_losses_are_those_of_the_program(tmp_path: Path) -> None:
    run = run_loop(
        """
o = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = ((model(x) - y) ** 2).mean(); loss.backward(); o.step(); print(repr(loss.item()))
model(x).backward(torch.ones(2, 1))
""",
        tmp_path,
    )
    printed = [float(line) for line in run.stdout.split()]
    assert run.losses().tolist()[:6] == printed
    assert run.losses()[6] == float("inf"), "a backward without a scalar loss"
    ends = run.events[run.main_pid]
    assert ends[ends[:, 0] == step_log.BACKWARD_END][-1, 3] == -1


def test_fingerprints_tell_samples_apart_and_repeat(tmp_path: Path) -> None:
    loop = """
o = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader: model(x).mean().backward(); o.step()
"""
    marks = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = run_loop(loop, folder, fingerprint_batches=4)
        loader = run.main["loaders"][0]
        marks.append(loader["input_hashes"])
        assert loader["label_hashes"] == [None] * 8, "targets that are no whole numbers"
    assert len(marks[0]) == 8
    assert len(set(marks[0])) == 8
    assert marks[0] == marks[1]


def test_wide_samples_are_the_same_in_double_precision() -> None:
    """The source of a program in float64 is edited to float32: its samples did not change."""
    wide = torch.randn(4, 5000)
    marks = []
    for batch in (wide, wide.double()):
        fingerprints = Fingerprints(4)
        fingerprints.add(0, [batch], 4)
        marks.append(fingerprints.of(0)[0])
    assert marks[0] == marks[1] and len(set(marks[0])) == 4


def test_observation_survives_a_hard_exit(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        SETUP
        + """
import os, time
for x, y in loader: model(x).mean().backward()
time.sleep(0.4)
model(x).mean().backward()
os._exit(3)
"""
    )
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True)
    assert run.returncode == 3
    assert sum(int((r[:, 0] == step_log.BACKWARD_BEGIN).sum()) for r in run.events.values()) >= 6


NAMES = {
    "module level": (
        """
o = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    o.zero_grad()
    loss = model(x).mean()  # the call
    loss.backward()
    o.step()
""",
        ("model", "the call", "model", "the call", 0),
    ),
    "functions": (
        """
def learn(net, x):
    net(x).mean().backward()  # the call
def main():
    o = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        o.zero_grad(); learn(model, x); o.step()
main()  # the holder
""",
        ("net", "the call", "model", "the holder", 0),
    ),
    "a trainer": (
        """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.o = torch.optim.SGD(net.parameters(), lr=0.1)
    def fit(self):
        for x, y in loader:
            self.o.zero_grad()
            self.net(x).mean().backward()  # the call
            self.o.step()
net = model
Trainer(net).fit()  # the holder
""",
        ("self.net", "the call", "model", "the holder", 0),
    ),
    "beside an object whose _modules are no mapping": (
        """
class Importer:
    def __init__(self):
        self._modules = {"models", "trainer"}
class Trainer:
    def __init__(self, net):
        self.net = net
        self.o = torch.optim.SGD(net.parameters(), lr=0.1)
def fit(lazily, trainer):
    for x, y in loader:
        trainer.o.zero_grad()
        trainer.net(x).mean().backward()  # the call
        trainer.o.step()
net = model
fit(Importer(), Trainer(net))  # the holder
""",
        ("trainer.net", "the call", "model", "the holder", 0),
    ),
}


@pytest.mark.parametrize("name", list(NAMES))
def test_names_of_the_model_where_it_is_called_and_held(name: str, tmp_path: Path) -> None:
    loop, (call_name, call, holder_name, holder, depth) = NAMES[name]
    run = run_loop(loop, tmp_path)
    source = (tmp_path / "train.py").read_text().splitlines()

    def line_of(text: str) -> int:
        return next(i for i, line in enumerate(source, 1) if text in line)

    assert run.said() == []
    [model] = run.main["models"]
    assert model["call"]["name"] == call_name
    assert model["call"]["location"]["line"] == line_of(call)
    assert model["holder"]["name"] == holder_name
    assert model["holder"]["location"]["line"] == line_of(holder)
    assert model["holder_depth"] == depth
    assert run.main["flags"]["backward_location"]["line"] == line_of("backward()")


def test_each_pass_is_known_by_the_lines_of_its_forward_and_its_backward(tmp_path: Path) -> None:
    loop = """
other = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 4))
def loss_of(net, x):
    return net(x).mean()  # inside
for x, y in loader:
    real = model(x)  # real
    (real - 1).square().mean().backward()  # real is learned
    fake = other(y)  # fake
    loss = model(fake.detach()).square().mean()
    loss.backward()  # fake is learned
    loss = loss_of(model, fake)  # by a function
    loss.backward()  # the generator learns
    other(y)  # nothing learns from this
"""
    run = run_loop(loop, tmp_path)
    source = (tmp_path / "train.py").read_text().splitlines()
    seen = [
        [one["name"], *(source[one[end][-1]["line"] - 1].partition("# ")[2]
        for end in ("forward", "backward"))] for one in run.main["passes"]
    ]  # fmt: skip
    assert ["model", "real", "real is learned"] in seen
    assert ["other", "fake", "fake is learned"] in seen
    assert ["net", "by a function", "the generator learns"] in seen
    assert len(seen) == 3
    assert len([one for one in run.main["passes"] if len(one["forward"]) == 2]) == 1
