"""Costs taken away in a running program: in their blocks alone, and undone after them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from probed import Probed, run_plain, run_probed

from torchdoctor.advice import catalogue
from torchdoctor.probe import step_log

pytestmark = pytest.mark.slow

MODEL = """
import json, random, sys, torch
torch.manual_seed(0)
random.seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3),
    torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
forwards = []
net[0].register_forward_hook(lambda *_: forwards.append(1))
rows, file = [], open("rows.jsonl", "w")
def note(**more):
    if rows: print(json.dumps(rows[-1]), file=file, flush=True)  # with what was added to it since
    state = [p.sum().item() for p in [*net.parameters(), *net.buffers()]]
    rows.append({"state": state, "lr": schedule.get_last_lr()[0], "luck": random.random(),
                 "forwards": len(forwards), **more})
"""
LOADER = """
data = torch.arange(2560, dtype=torch.float32).view(320, 8).sin()
for epoch in range(2):
    for x, in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4):
        note(first=x[0, 0].numpy().item())
        optimizer.zero_grad()
        loss = (net(x) - x.mean()).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        BODY
        optimizer.step()
        schedule.step()
"""
BATCHES = """
calls = []
def sample(number):
    return torch.full((8,), float(number)).sin()
def get_batch(split):
    calls.append(split)
    return torch.stack([sample(random.randrange(1000)) for _ in range(4)])
def evaluate():
    with torch.no_grad():
        return sum(net(get_batch("val")).mean().item() for _ in range(3))
for number in range(120):
    note(calls=len(calls), train=calls.count("train"))
    if number % 10 == 9: evaluate()
    x = get_batch("train")
    optimizer.zero_grad()
    loss = (net(x) - x.mean()).square().mean()
    loss.backward()
    optimizer.step()
    schedule.step()
"""


def run(
    folder: Path,
    script: str,
    ceiling: str | None,
    settings: dict[str, Any] | None = None,
    boundary: str = "loader",
    **wanted: Any,
) -> Probed:
    """A switching launch with this one arm: 3 iterations to warm up, blocks of 4 after 3."""
    (folder / "train.py").write_text(script)
    arms = []
    if ceiling is not None:
        file = catalogue.ceilings()[ceiling].file
        arms = [[{"id": ceiling, "file": file, "settings": settings or {}}]]
    switch = {"arms": arms, "rounds": 2, "block_steps": 4, "discard_steps": 3, "seed": 3}
    return run_probed(
        ["train.py"],
        folder,
        folder,
        forked=True,
        purpose="time",
        boundary={"kind": boundary, "ident": 0, "every": 1},
        warmup_steps=3,
        switch={**switch, **wanted},
        timeout=600,
    )


def body(text: str) -> str:
    inside = textwrap.indent(textwrap.dedent(text).strip(), 8 * " ")
    return MODEL + LOADER.replace("        BODY", inside)


def on_in_iterations(ran: Probed, boundary: str = "loader") -> list[int]:
    """Which arm was on in each iteration, as its end has it; a loader's begins with a boundary."""
    now, found = 0, []
    for event, ident, _, _ in ran.events[ran.main_pid]:
        if event == step_log.SWITCH:
            now = int(ident)
        elif event == step_log.BOUNDARY:
            found.append(now)
    return found[boundary == "loader" :]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def untouched(folder: Path, script: str) -> list[dict[str, Any]]:
    """What the program notes when nobody looks on."""
    other = folder / "plain"
    other.mkdir()
    (other / "train.py").write_text(script)
    ran = run_plain(["train.py"], other, forked=True)
    assert ran.returncode == 0, ran.stderr
    return rows_of(other)


def applied(ran: Probed) -> None:
    (fix,) = ran.main["fixes"]
    assert ran.stopped_by == "done" and ran.said() == [], ran.stderr
    assert (fix["state"], fix["why"]) == ("applied", None)


def without(rows: list[dict[str, Any]], on: list[int], *names: str) -> list[tuple[Any, ...]]:
    """These values of the iterations in which nothing was taken away."""
    pairs = zip(on, rows, strict=False)
    return [tuple(row[name] for name in names) for one, row in pairs if one == 0]


def test_the_training_without_a_loader_is_undone_to_the_last_bit(tmp_path: Path) -> None:
    script = body("pass")
    ran = run(tmp_path, script, "loader-batches", {"loader": 0})
    applied(ran)
    on = on_in_iterations(ran)
    rows, plain = rows_of(tmp_path), untouched(tmp_path, script)
    ours = without(rows, on, "state", "lr", "luck", "first")
    theirs = without(plain, [0] * len(plain), "state", "lr", "luck", "first")
    assert on.count(1) > 10 and len(ours) > 15
    assert ours == theirs[: len(ours)], "weights, schedule, generators, batches"


def test_a_batch_function_is_answered_and_leaves_no_trace(tmp_path: Path) -> None:
    script = MODEL + BATCHES
    settings = {"file": str(tmp_path / "train.py"), "function": "sample"}
    ran = run(tmp_path, script, "batch-function", settings, boundary="optimizer")
    applied(ran)
    on = on_in_iterations(ran, "optimizer")
    rows, plain = rows_of(tmp_path), untouched(tmp_path, script)
    answered = [
        number
        for number in range(1, len(rows) - 1)
        if rows[number + 1]["train"] == rows[number]["train"]
    ]
    assert len(answered) > 8 and {on[number] for number in answered} == {1}
    evaluated = [n for n in range(len(rows) - 1) if n % 10 == 9]
    for number in evaluated:
        val = [row["calls"] - row["train"] for row in rows[number : number + 2]]
        assert val[1] - val[0] == 3, "an evaluation gets batches of its own"
    first = on.index(1)
    assert [r["state"] for r in rows[:first]] == [r["state"] for r in plain[:first]]
    for begin, end in spans(on, len(rows)):
        assert rows[begin]["state"] == rows[end]["state"] and rows[begin]["lr"] == rows[end]["lr"]


def spans(on: list[int], known: int) -> list[tuple[int, int]]:
    """(first iteration with the arm on, first one after it) of each time it was on."""
    found, begin = [], None
    for number, one in enumerate(on[:known]):
        if one and begin is None:
            begin = number
        elif not one and begin is not None:
            found.append((begin, number))
            begin = None
    assert found
    return found


def test_forward_and_backward_are_left_out_and_weights_come_back(tmp_path: Path) -> None:
    script = body("assert all(p.grad is not None for p in net.parameters())")
    ran = run(tmp_path, script, "model-skipped")
    applied(ran)
    on, rows = on_in_iterations(ran), rows_of(tmp_path)
    assert len({row["first"] for row in rows}) == len(rows), "the loader goes on as ever"
    for begin, end in spans(on, len(rows)):
        assert rows[begin]["state"] == rows[end]["state"], "weights, buffers"
        assert rows[begin]["lr"] == rows[end]["lr"]
        ran_for_real = rows[end]["forwards"] - rows[begin]["forwards"]
        assert ran_for_real == 1 < end - begin, "one forward, to have something to answer with"


def test_values_are_answered_from_the_iteration_before(tmp_path: Path) -> None:
    script = body("""
    found = []
    for row in x:
        value = row[1].item()
        if value > 0: found.append(value)
        count = 0
        while row.sum() * 0 + count < 3: count += 1
    assert count == 3
    real = [value for value in x[:, 1].numpy().tolist() if value > 0]
    rows[-1].update(found=found, real=real, loss=float(loss))
    """)
    ran = run(tmp_path, script, "answered-waits", {"on_gpu": False})
    applied(ran)
    on, rows = on_in_iterations(ran), rows_of(tmp_path)
    for number, row in enumerate(rows):
        if on[number] == 0:
            assert row["found"] == row["real"], number
    for begin, end in spans(on, len(rows)):
        first = rows[begin]
        assert first["found"] == first["real"]
        for row in rows[begin + 1 : end]:
            assert (row["found"], row["loss"]) == (first["found"], first["loss"])
        assert any(row["found"] != row["real"] for row in rows[begin + 1 : end])
        assert rows[begin]["state"] == rows[end]["state"]


def test_copies_to_a_device_are_answered_with_what_is_there(tmp_path: Path) -> None:
    """The meta device stands for a GPU: it is another device, and holds no values."""
    script = body("""
    there = x.to("meta", non_blocking=True)
    assert there.device.type == "meta" and there.shape == x.shape
    assert (x * 2).to("cpu").device.type == "cpu"
    assert net[0].weight.to("meta").requires_grad
    held = globals().setdefault("held", [])
    held.append(there)
    rows[-1]["device"] = [one is there for one in held].index(True)
    """)
    ran = run(tmp_path, script, "device-batches")
    applied(ran)
    on, rows = on_in_iterations(ran), rows_of(tmp_path)
    for begin, end in spans(on, len(rows)):
        assert {row["device"] for row in rows[begin:end]} == {begin}
    assert all(row["device"] == n for n, row in enumerate(rows) if on[n] == 0)


def test_a_program_that_changes_what_was_copied_is_refused(tmp_path: Path) -> None:
    ran = run(tmp_path, body("x.to('meta').add_(1)"), "device-batches")
    (fix,) = ran.main["fixes"]
    assert fix["state"] == "refused" and fix["why"]["fact"] == "result-changed-in-place"
    assert ran.stopped_by == "done", "the program went on"


LBFGS = (
    MODEL
    + """
x = torch.randn(64, 8)
solver = torch.optim.LBFGS(net[0].parameters(), lr=0.1, max_iter=4, line_search_fn="strong_wolfe")
def closure():
    solver.zero_grad()
    loss = (net(x) - x.mean()).square().mean()
    loss.backward()
    return loss
for number in range(60):
    note()
    solver.step(closure)
"""
)
GAN = (
    MODEL
    + """
from torch.autograd import grad
critic = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
other = torch.optim.Adam(critic.parameters(), lr=0.01)
for number in range(60):
    noise, real = torch.randn(16, 8), torch.randn(16, 1)
    note()
    other.zero_grad()
    fake = net(noise)
    mixed = (real + fake.detach()).requires_grad_()
    slope, = grad(critic(mixed).sum(), mixed, create_graph=True)
    worth = critic(fake.detach()).mean() - critic(real).mean() + (slope.norm() - 1).square()
    if torch.isnan(worth): raise SystemExit("nan")
    worth.backward()
    other.step()
    optimizer.zero_grad()
    (-critic(net(noise))).mean().backward()
    if any(p.grad is None for p in net.parameters()): raise SystemExit("no gradient")
    optimizer.step()
"""
)


@pytest.mark.parametrize("ceiling", ["answered-waits", "model-skipped"])
@pytest.mark.parametrize(("script", "ident"), [(LBFGS, 1), (GAN, 0)], ids=["lbfgs", "gan"])
def test_a_program_that_lives_by_its_values_goes_on(
    script: str, ident: int, ceiling: str, tmp_path: Path
) -> None:
    """A line search decides by losses; a penalty differentiates; both must come to their end."""
    (tmp_path / "train.py").write_text(script)
    file = catalogue.ceilings()[ceiling].file
    settings = {"on_gpu": False} if ceiling == "answered-waits" else {}
    ran = run_probed(
        ["train.py"],
        tmp_path,
        tmp_path,
        forked=True,
        purpose="time",
        boundary={"kind": "optimizer", "ident": ident, "every": 1},
        warmup_steps=3,
        switch={
            "arms": [[{"id": ceiling, "file": file, "settings": settings}]],
            "rounds": 2,
            "block_steps": 4,
            "discard_steps": 3,
            "seed": 3,
        },
        timeout=600,
    )
    applied(ran)
    on, rows = on_in_iterations(ran, "optimizer"), rows_of(tmp_path)
    for begin, end in spans(on, len(rows)):
        assert rows[begin]["state"] == rows[end]["state"]


def test_inputs_of_ever_other_shapes_are_refused(tmp_path: Path) -> None:
    script = body("pass").replace("net(x)", "net(x[: 2 + len(rows) % 3].repeat(len(rows), 1))")
    script = script.replace("- x.mean()", "- 1.0")
    ran = run(tmp_path, script, "model-skipped", block_steps=10)
    (fix,) = ran.main["fixes"]
    assert fix["state"] == "refused" and fix["why"]["fact"] == "input-shapes-vary"
    assert ran.stopped_by == "done"


def test_a_generator_of_batches_cannot_be_answered(tmp_path: Path) -> None:
    yields = BATCHES.replace("return torch.stack", "yield torch.stack")
    for split in ("val", "train"):
        yields = yields.replace(f'get_batch("{split}")', f'next(get_batch("{split}"))')
    script = MODEL + yields
    settings = {"file": str(tmp_path / "train.py"), "function": "get_batch"}
    ran = run(tmp_path, script, "batch-function", settings, boundary="optimizer")
    (fix,) = ran.main["fixes"]
    assert fix["state"] == "refused" and fix["why"]["fact"] == "generator-prepares", ran.stderr
    assert ran.stopped_by == "done"
