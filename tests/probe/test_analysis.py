"""What the hooks see in the steps after the profiler window, in a real process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from probed import Probed, run_probed

from torchdoctor.queries.gradient_noise import from_products

pytestmark = pytest.mark.slow

PROFILE = {"wait": 1, "warmup": 1, "active": 2, "analyse": True}
SETUP = """
import contextlib
import numpy as np, torch
torch.manual_seed(0)
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
        forked=True,
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
        *((lines[name], "pageable") for name in ("constant", "changing", "batch")),
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
    assert len(facts["gradient_norms"]) == 12, "those of the steps for the noise scale too"
    assert max(facts["gradient_norms"]) < 1.01, "as the optimizer gets them: clipped"
    assert 20 < facts["input_mean"] < 180
    assert facts["input_std"] > 50
    # By channel: the inputs are a table, whose columns count alike.
    means, deviations = zip(*facts["input_channels"], strict=True)
    assert sum(means) / len(means) == pytest.approx(facts["input_mean"], rel=1e-4)
    assert min(deviations) > 10 and len(set(means)) == len(means) > 1
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


ELEMENTS = """
import time
def work():
    began = time.thread_time_ns()
    while time.thread_time_ns() - began < 300_000:
        pass
table, total = torch.arange(64.0), torch.zeros(8, 8)
for x, in loader:
    learn(x)
    for i in range(50):
        table[i]  # read
    for i in range(8):
        for j in range(8):
            total[i, j] = 1.0  # write
    for value in table:
        value.item()  # item
    for i in range(4):
        table[i]  # few
    for i in range(20):
        table[i : i + 2]  # slices
        (table == i).sum().item()  # of all elements: what evaluation counts for each batch
    assert torch.tensor([x.sum()]).shape == (1,), "a tensor without dimensions is no sequence"
    assert not isinstance(x, __import__("collections").abc.Sequence)
    for i in range(20):
        total[i % 8]; work()  # rows
"""


def test_loops_over_elements_are_seen_at_their_lines(tmp_path: Path) -> None:
    facts, lines = analysed(ELEMENTS, tmp_path)
    seen = {(row["location"]["line"], row["name"]): row for row in facts["tensor_calls"]}
    assert {row["kind"] for row in seen.values()} == {"element"}
    assert set(seen) == {
        (lines["read"], "__getitem__"),
        (lines["write"], "__setitem__"),
        (lines["item"], "item"),
        (lines["rows"], "__getitem__"),
    }
    assert seen[lines["read"], "__getitem__"]["calls_per_step"] == 50
    assert seen[lines["write"], "__setitem__"]["calls_per_step"] == 64
    assert seen[lines["item"], "item"]["calls_per_step"] == 64
    # The turn of a loop is more than the call in it; one that lost its core to others is left out.
    assert seen[lines["rows"], "__getitem__"]["host_s"] > 10 * 0.0003


SAMPLES = SETUP.replace(
    "loader = torch.utils.data.DataLoader(data, batch_size=4)",
    """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return (data.tensors[0][index],)
loader = torch.utils.data.DataLoader(Rows(), batch_size=20)""",
)


def test_a_data_set_that_is_asked_for_one_sample_after_the_other_is_no_loop(
    tmp_path: Path,
) -> None:
    facts, _ = analysed("for x, in loader:\n    learn(x)\n", tmp_path, SAMPLES)
    assert facts["tensor_calls"] == []


# The gradient of a sample is the sample: mean 1, variance 64 each, so the noise scale is 64.
NOISE = """
import torch
torch.manual_seed(3)
data = torch.utils.data.TensorDataset(1.0 + 8.0 * torch.randn(4000, 200))
loader = torch.utils.data.DataLoader(data, batch_size=20)
weight = torch.nn.Parameter(torch.zeros(200))
optimizer = torch.optim.SGD([weight], lr=0.01)
for (x,) in loader:
    optimizer.zero_grad()
    (x @ weight).mean().backward()
    optimizer.step()
"""


def test_gradients_of_a_few_more_steps_give_the_noise_scale(tmp_path: Path) -> None:
    facts, _ = analysed("", tmp_path, NOISE)
    table = facts["gradient_products"]
    assert len(table) == 12 and all(len(row) == 12 for row in table)
    assert table[0][1] == table[1][0]
    found = from_products(table, 20.0)
    assert found is not None and found.high is not None
    # How often the interval holds the truth is asked of many draws in test_gradient_noise.
    assert 44.0 < (found.estimate or 0.0) < 90.0
    assert found.low < 80.0 and found.high > 50.0


EPOCH = """
import random, time
import torch
class Decoded(torch.utils.data.Dataset):
    asked = 0
    def __len__(self):
        return 400
    def __getitem__(self, index):
        SAMPLE
data = Decoded()
loader = torch.utils.data.DataLoader(data, batch_size=4)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in loader:
    optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()
"""


ANOTHER = "another-sample-at-once"


@pytest.mark.parametrize(
    ("sample", "expected", "draws"),
    [
        ("return torch.tensor([float(index)])", None, False),
        ("return torch.tensor([random.random()])", "draws-random-numbers", True),
        (
            "self.asked += 1; return torch.tensor([float(self.asked)])",
            "another-sample-at-once",
            False,
        ),
        ("return torch.tensor([time.time_ns() % 1000000 / 1e6])", ANOTHER, False),
    ],
)
def test_whether_samples_stay_the_same_is_seen_within_the_first_epoch(
    sample: str, expected: str | None, draws: bool, tmp_path: Path
) -> None:
    facts, _ = analysed("", tmp_path, EPOCH.replace("SAMPLE", sample))
    found = facts["sample_check"]
    assert (found["same"], found["draws_random"]) == (expected is None, draws)
    if expected is None:
        assert found["samples"] == 8
    else:
        assert found["why"] == {"fact": expected, "values": {}}


def test_random_numbers_of_the_collate_function_are_seen(tmp_path: Path) -> None:
    program = EPOCH.replace("SAMPLE", "return torch.tensor([float(index)])")
    drawing = "lambda samples: torch.stack(samples) + torch.rand(1)"
    program = program.replace("DataLoader(data, ", f"DataLoader(data, collate_fn={drawing}, ")
    facts, _ = analysed("", tmp_path, program)
    assert facts["sample_check"]["same"] and facts["sample_check"]["draws_random"]


def test_a_part_of_a_data_set_is_looked_at_as_well(tmp_path: Path) -> None:
    part = "DataLoader(torch.utils.data.Subset(data, range(400)), "
    program = EPOCH.replace("SAMPLE", "return torch.tensor([float(index)])")
    facts, _ = analysed("", tmp_path, program.replace("DataLoader(data, ", part))
    assert facts["sample_check"]["same"]
    assert facts["loaders"][0]["dataset_cls"] == "__main__.Decoded"


def test_a_data_set_that_waits_for_ever_is_left_alone(tmp_path: Path) -> None:
    hangs = "if index == 500: time.sleep(1000)\n        return torch.tensor([1.0])"
    facts, _ = analysed("", tmp_path, EPOCH.replace("SAMPLE", hangs).replace("400", "4000"))
    assert facts["sample_check"] is None


BROKEN = """
import sys
def start(self): raise RuntimeError("no history with this allocator")
def facts(self): raise ValueError("nothing to tell")
sys.modules["_torchdoctor_probe.hooks.analysis"].MemorySnapshot.start = start
sys.modules["_torchdoctor_probe.fixkit.padded_products"].PaddedProducts.facts = facts
for x, in loader:
    total = learn(x) if "total" not in globals() else total + learn(x)
"""


def test_a_part_that_fails_is_said_and_costs_no_other(tmp_path: Path) -> None:
    """A memory history that could not be recorded left a report without any of the analysis."""
    (tmp_path / "train.py").write_text(SETUP + BROKEN)
    run = run_probed(
        ["train.py"],
        tmp_path,
        tmp_path,
        forked=True,
        purpose="profile",
        boundary={"kind": "loader", "ident": 0, "every": 1},
        profile=PROFILE,
    )
    assert run.stopped_by == "done", run.stderr
    assert run.said() == [
        "MemorySnapshot: RuntimeError: no history with this allocator",
        "PaddedProducts: ValueError: nothing to tell",
    ]
    assert run.main["analysed_steps"] == 6 and run.main["kept_graphs"]
    assert run.main["gradient_norms"] and run.main["sample_check"]["same"]


OWN_WAITS = """
class OnDevice(torch.Tensor):
    device = property(lambda self: torch.device("cuda"))
    is_cpu = property(lambda self: False)
for x, in loader:
    loss = learn(x.as_subclass(OnDevice))
    loss.item()  # users
"""


def test_what_the_analysis_itself_reads_is_no_wait_of_the_program(tmp_path: Path) -> None:
    """The scale of the inputs is read by `float()`: it was told as lines of the user's."""
    main, at = analysed(OWN_WAITS, tmp_path)
    assert main["input_mean"] is not None and main["gradient_norms"]
    waits = [(row["name"], row["location"]["line"]) for row in main["tensor_calls"]]
    assert waits == [("item", at["users"])]
