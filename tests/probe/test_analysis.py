"""What the hooks see in the steps after the profiler window, in a real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from probed import Probed, run_probed

pytestmark = pytest.mark.slow

PROFILE = {"wait": 1, "warmup": 1, "active": 2, "analyse": True}
SETUP = """
import contextlib
import numpy as np, torch
data = torch.utils.data.TensorDataset(torch.randn(400, 4))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def learn(x):
    loss = model(x).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss
"""


def analysed(loop: str, folder: Path, setup: str = SETUP) -> tuple[dict[str, Any], dict[str, int]]:
    """Facts of the process, and the line of each text of the loop that is marked `# name`."""
    text = setup + loop
    (folder / "train.py").write_text(text)
    run: Probed = run_probed(
        ["train.py"],
        folder,
        folder,
        purpose="profile",
        boundary={"kind": "loader", "ident": 0, "every": 1},
        profile=PROFILE,
    )
    assert run.said() == []
    assert run.stopped_by == "done", run.stderr
    assert run.main["analysed_steps"] == 6
    lines = text.splitlines()
    return run.main, {x.split("# ")[1]: n for n, x in enumerate(lines, 1) if "# " in x}


# "meta" stands for a GPU: a tensor that goes there leaves the CPU.
MOVES = """
constant, changing = torch.ones(4), torch.ones(4)
held = np.ones(4, dtype=np.float32)
for x, in loader:
    learn(x * torch.tensor(np.ones(4, dtype=np.float32)))  # lone
    torch.tensor(held)  # held
    torch.tensor([held, held])  # list
    torch.zeros(8).to("meta")  # made
    torch.rand(8).to("meta")  # random
    constant.to("meta")  # constant
    changing += 1
    changing.to("meta")  # changing
    x.to("meta")  # batch
    torch.tensor([1.0, 2.0])  # numbers
"""


def test_copies_and_moves_are_seen_at_their_lines(tmp_path: Path) -> None:
    facts, lines = analysed(MOVES, tmp_path)
    seen = {(row["location"]["line"], row["kind"]): row for row in facts["tensor_calls"]}
    assert set(seen) == {
        (lines["lone"], "array-copy"),
        (lines["held"], "array-copy"),
        (lines["list"], "arrays-copy"),
        (lines["made"], "made-then-moved"),
        (lines["random"], "made-then-moved"),
        (lines["constant"], "moved-again"),
    }
    assert seen[lines["lone"], "array-copy"]["sure"]
    assert not seen[lines["held"], "array-copy"]["sure"], "somebody may write to it"
    assert not seen[lines["random"], "made-then-moved"]["sure"], "a device has other numbers"
    assert seen[lines["made"], "made-then-moved"]["bytes_per_step"] == 32
    assert all(row["host_s"] > 0 for row in seen.values())


WAITS = """
away = torch.ones(1, device="meta")
for x, in loader:
    loss = learn(x)
    loss.item()
    with contextlib.suppress(Exception):
        away.item()  # item
    torch.cuda.empty_cache()  # cache
"""


def test_what_waits_for_a_device_is_seen_at_its_line(tmp_path: Path) -> None:
    facts, lines = analysed(WAITS, tmp_path)
    seen = {(row["location"]["line"], row["name"]) for row in facts["tensor_calls"]}
    # On the CPU there is nothing to wait for.
    assert seen == {(lines["item"], "item"), (lines["cache"], "empty_cache")}


KEPT = """
total, history = 0.0, []
for x, in loader:
    loss = learn(x)
    total += loss  # sum
    history.append(loss)  # list
"""
RELEASED = """
total, history, hidden = 0.0, [], torch.zeros(1)
for x, in loader:
    loss = learn(x + hidden)
    total += loss.detach()
    history.append(loss.item())
    hidden = loss.detach()
    last = loss
"""


def test_graphs_that_are_kept_are_seen_with_what_keeps_them(tmp_path: Path) -> None:
    facts, lines = analysed(KEPT, tmp_path)
    seen = {(row["name"], row["kind"], row["location"]["line"]) for row in facts["kept_graphs"]}
    assert seen == {("total", "sum", lines["sum"]), ("history", "collection", lines["list"])}


def test_a_loop_that_lets_its_graphs_go_is_not_accused(tmp_path: Path) -> None:
    facts, _ = analysed(RELEASED, tmp_path)
    assert facts["kept_graphs"] == []


ODD = """
class Odd(torch.Tensor):
    @property
    def grad_fn(self):
        raise RuntimeError("not to be looked at")
odd, history = torch.ones(2).as_subclass(Odd), []
for x, in loader:
    history.append(learn(x))  # list
"""


def test_a_tensor_that_forbids_a_look_hides_no_other(tmp_path: Path) -> None:
    facts, lines = analysed(ODD, tmp_path)
    assert [row["location"]["line"] for row in facts["kept_graphs"]] == [lines["list"]]


TRAINING = """
from torch.optim.swa_utils import AveragedModel
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
AveragedModel(model, avg_fn=lambda a, b, n: 0.9 * a + 0.1 * b)
for x, in loader:
    loss = model(200 * x + 100).mean()
    optimizer.zero_grad(); loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); scheduler.step()
"""


def test_how_training_is_set_up_is_seen(tmp_path: Path) -> None:
    facts, _ = analysed(TRAINING, tmp_path)
    flags = facts["flags"]
    assert flags["schedulers"] == 1
    assert flags["averaged_by_loop"] == 1
    assert flags["clip_calls"] > 0
    assert len(facts["gradient_norms"]) == 6
    assert max(facts["gradient_norms"]) < 1.01, "as the optimizer gets them: clipped"
    assert 20 < facts["input_mean"] < 180
    assert facts["input_std"] > 50
    assert facts["optimizers"][0]["first_lr"] == 0.01
    assert facts["optimizers"][0]["lr"] < 0.01


@pytest.mark.parametrize("enabled", [True, False])
def test_a_gradient_scaler_counts_where_it_is_switched_on(enabled: bool, tmp_path: Path) -> None:
    """Many programs make one for every precision: float16 must not be refused for that."""
    loop = f"""
scaler = torch.amp.GradScaler("cpu", enabled={enabled})
for x, in loader:
    optimizer.zero_grad(); scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer); scaler.update()
"""
    facts, _ = analysed(loop, tmp_path)
    assert facts["flags"]["grad_scaler"] is enabled
