"""What becomes larger in the training loop is named, and what only changes is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed import run_plain, run_probed

pytestmark = pytest.mark.slow

PROGRAM = """
import collections, time, torch

class Metric:
    def __init__(self):
        self.scores = torch.empty(0)
        self.bounded = collections.deque(maxlen=4)
    def update(self, x):
        self.scores = torch.cat([self.scores, x])
        self.bounded.append(x)

class Trainer:
    def __init__(self):
        self.metric, self.seen = Metric(), []

def train(trainer, history):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(80):
        x = torch.ones(8, 4)
        model(x).sum().backward()
        optimizer.step()
        trainer.metric.update(torch.zeros(5))
        history[number] = number
        if number % 40 == 0:
            trainer.seen.append(number)
        time.sleep(0.03)

train(Trainer(), {})
print("trained")
"""


def test_what_grows_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    run = run_probed(
        ["train.py"], tmp_path, tmp_path, forked=True, after="continue", sample_stacks=True
    )
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    assert run.stdout == run_plain(["train.py"], tmp_path, forked=True).stdout
    grown = {row["name"]: row for row in run.main["grown_objects"]}
    assert set(grown) == {"trainer.metric.scores", "history"}
    scores = grown["trainer.metric.scores"]
    assert scores["kind"] == "Tensor"
    assert scores["per_step"] == pytest.approx(5, rel=0.2)
    assert scores["location"]["function"] == "train"


HOLDING = """
import time, torch, weakref

def train():
    mine = locals()
    mine["kept"] = "mine"
    return loop(mine)

def loop(mine):
    model = torch.nn.Linear(4, 1)
    alive = 0
    for number in range(60):
        output = model(torch.ones(8, 4))
        before = weakref.ref(output)
        output.sum().backward()
        output = None
        alive += before() is not None and number > 5
        time.sleep(0.02)
    return alive, mine["kept"]

print(train())
"""


def test_a_look_keeps_nothing_alive_and_leaves_what_the_program_holds(tmp_path: Path) -> None:
    """What a function has let go of would fill a GPU's memory; locals() may be held on purpose."""
    (tmp_path / "train.py").write_text(HOLDING)
    run = run_probed(
        ["train.py"], tmp_path, tmp_path, forked=True, after="continue", sample_stacks=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "(0, 'mine')\n"


HOOKED = """
import time, torch

def keep(module, inputs, output):
    pass

def train():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = model.register_forward_pre_hook(lambda module, inputs: None)
    for number in range(60):
        for module in (model[0], model[2]):
            module.register_forward_hook(keep)
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.03)

train()
"""


def test_hooks_that_are_registered_again_are_counted_with_their_line(tmp_path: Path) -> None:
    """A step that grew was told with the hook's line, and no cure was known."""
    (tmp_path / "train.py").write_text(HOOKED)
    run = run_probed(
        ["train.py"], tmp_path, tmp_path, forked=True, after="continue", sample_stacks=True
    )
    assert run.returncode == 0, run.stderr
    assert run.said() == []
    grown = {row["name"]: row for row in run.main["grown_objects"]}
    assert set(grown) == {"register_forward_hook"}
    hooks = grown["register_forward_hook"]
    assert (hooks["kind"], hooks["model"]) == ("hooks", "Sequential")
    assert hooks["per_step"] == pytest.approx(2, rel=0.2)
    assert "module.register_forward_hook(" in HOOKED.splitlines()[hooks["location"]["line"] - 1]
