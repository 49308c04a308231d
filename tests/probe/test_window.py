"""The measured window: where it begins and ends, and that nothing runs after it."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from probed import Probed, run_plain, run_probed

from torchdoctor.bench.launch_timing import launch_timing
from torchdoctor.observe.events import evaluates_training_loader, read_channel
from torchdoctor.probe import step_log
from torchdoctor.schema import Boundary

pytestmark = pytest.mark.slow

SETUP = """
import sys, signal, torch
sys.path.insert(0, TOOL)
data = torch.utils.data.TensorDataset(torch.randn(400, 4))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model = torch.nn.Linear(4, 1)
o = torch.optim.SGD(model.parameters(), lr=0.01)
def learn(x):
    o.zero_grad(); model(x).mean().backward(); o.step()
"""
TOOL = str(Path(step_log.__file__).parents[2])


def run_loop(
    loop: str, folder: Path, kind: str = "loader", every: int = 1, ident: int = 0, **plan: Any
) -> Probed:
    (folder / "train.py").write_text(SETUP.replace("TOOL", repr(TOOL)) + loop)
    boundary = {"kind": kind, "ident": ident, "every": every}
    return run_probed(
        ["train.py"],
        folder,
        folder,
        forked=True,
        purpose="time",
        boundary=boundary,
        timeout=600,
        **plan,
    )


def window_of(run: Probed) -> tuple[list[int], int]:
    """Values of the boundaries within the window, and how many there were before it."""
    rows = run.events[run.main_pid]
    begin = next(i for i, r in enumerate(rows) if r[0] == step_log.WINDOW_BEGIN)
    end = next(i for i, r in enumerate(rows) if r[0] == step_log.WINDOW_END)
    t0, t1 = rows[begin][2], rows[end][2]
    marks = rows[rows[:, 0] == step_log.BOUNDARY]
    inside = marks[(marks[:, 2] >= t0) & (marks[:, 2] <= t1)]
    return inside[:, 3].tolist(), int((marks[:, 2] < t0).sum())


@pytest.mark.parametrize(
    ("kind", "loop"),
    [
        ("loader", "for x, in loader: learn(x)"),
        ("optimizer", "for _ in range(100): learn(torch.ones(2, 4))"),
        ("backward", "for _ in range(100): model(torch.ones(2, 4)).mean().backward()"),
        (
            "explicit",
            "import torchdoctor\nfor x, in loader:\n    learn(x); torchdoctor.step(4)",
        ),
    ],
)
def test_window_holds_the_steps_asked_for(kind: str, loop: str, tmp_path: Path) -> None:
    run = run_loop(loop, tmp_path, kind, warmup_steps=3, measure_steps=5)
    assert run.stopped_by == "done", run.stderr
    assert run.said() == []
    inside, before = window_of(run)
    assert inside == [3, 4, 5, 6, 7, 8]
    assert before == 3
    done = json.loads(next(run.channel.glob("done-*.json")).read_text())
    assert done["reason"] == "window"


def test_every_second_event(tmp_path: Path) -> None:
    run = run_loop("for x, in loader: learn(x)", tmp_path, "optimizer", every=2, warmup_steps=2)
    inside, _ = window_of(run)
    assert inside == [2, 3, 4, 5, 6]
    rows = run.events[run.main_pid]
    steps = rows[rows[:, 0] == step_log.OPTIMIZER_END]
    marks = rows[rows[:, 0] == step_log.BOUNDARY]
    begin, end = marks[2][2], marks[-1][2]
    assert ((steps[:, 2] > begin) & (steps[:, 2] <= end)).sum() == 8


def test_fetching_ahead_begins_no_iteration(tmp_path: Path) -> None:
    loop = """
it = iter(loader)
next(it); next(it)
for x, in it: learn(x)
"""
    run = run_loop(loop, tmp_path, warmup_steps=2, measure_steps=4)
    rows = run.events[run.main_pid]
    marks = rows[rows[:, 0] == step_log.BOUNDARY]
    backwards = rows[rows[:, 0] == step_log.BACKWARD_BEGIN]
    for first, second in itertools.pairwise(marks[1:]):
        assert ((backwards[:, 2] > first[2]) & (backwards[:, 2] < second[2])).sum() == 1


def test_time_ends_a_window_early(tmp_path: Path) -> None:
    loop = "import time\nfor x, in loader:\n    learn(x); time.sleep(0.03)"
    run = run_loop(loop, tmp_path, warmup_steps=1, measure_steps=90, max_window_s=0.05)
    assert run.stopped_by == "done"
    inside, _ = window_of(run)
    assert len(inside) == 11, "ten steps at least"


STUBBORN = """
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, lambda *_: print("sig"))
signal.signal(signal.SIGALRM, lambda *_: 1 / 0); signal.setitimer(signal.ITIMER_REAL, 1.5, 0.05)
try:
    while True:
        try:
            for x, in loader: learn(x)
        except BaseException as e: print("caught", type(e).__name__)
finally:
    print("left")
"""


def test_stubborn_script_does_not_get_on_after_its_window(tmp_path: Path) -> None:
    run = run_loop(STUBBORN, tmp_path, lingers_s=1.0)
    assert run.stopped_by == "done"
    assert run.stdout == "", "a statement of the script ran after its window"
    assert run.count(step_log.WINDOW_END) == 1


def test_continue_goes_on(tmp_path: Path) -> None:
    loop = "for x, in loader: learn(x)\nprint('end')"
    run = run_loop(loop, tmp_path, after="continue")
    assert run.stdout == "end\n"
    assert run.count(step_log.WINDOW_END) == 1


def test_program_that_ends_before_its_window(tmp_path: Path) -> None:
    run = run_loop("for x, in loader: learn(x)", tmp_path, warmup_steps=50, measure_steps=500)
    assert run.stopped_by is None
    assert run.returncode == 0
    assert not list(run.channel.glob("done-*.json"))
    assert run.count(step_log.OPTIMIZER_END) == 100


PROFILE = {"wait": 1, "warmup": 1, "active": 3, "with_stack": False, "record_shapes": True}


def test_profiler_window_marks_its_steps(tmp_path: Path) -> None:
    run = run_loop("for x, in loader: learn(x)", tmp_path, profile=PROFILE)
    assert run.stopped_by == "done", run.stderr
    assert run.said() == []
    done = json.loads(next(run.channel.glob("done-*.json")).read_text())
    assert done["reason"] == "profile"
    with gzip.open(next(run.channel.glob("trace-*.json.gz"))) as file:
        events = json.load(file)["traceEvents"]
    names = {e.get("name", "") for e in events}
    assert len({n for n in names if n.startswith("ProfilerStep#")}) == 3
    assert any("backward" in n.lower() for n in names)


def test_users_own_profiler_is_not_made_to_fail(tmp_path: Path) -> None:
    loop = """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
    for x, in loader: learn(x)
print("end")
"""
    run = run_loop(loop, tmp_path, profile=PROFILE, after="continue")
    assert (run.returncode, run.stdout) == (0, "end\n"), run.stderr
    assert run.said(), "nobody said that the profiler window failed"


LOOPS = {
    "plain": ("loader", "for _ in range(3):\n    for x, in loader: learn(x)"),
    "batches that are tensors": (
        "loader",
        "loader = None\n"
        "loader = torch.utils.data.DataLoader(torch.randn(400, 4), batch_size=4)\n"
        "for x in loader: learn(x)",
    ),
    "batches that are mappings": (
        "loader",
        "rows = [{'name': 'x', 'x': torch.randn(4)} for _ in range(400)]\n"
        "loader = torch.utils.data.DataLoader(rows, batch_size=4)\n"
        "for x in loader: learn(x['x'])",
    ),
    "validation between": (
        "loader",
        "other = torch.utils.data.DataLoader(data, batch_size=20)\n"
        "for _ in range(3):\n"
        "    for i, (x,) in enumerate(loader):\n"
        "        learn(x)\n"
        "        if i % 7 == 6:\n"
        "            with torch.no_grad():\n"
        "                for y, in other: model(y)",
    ),
    "a batch each, by optimizer steps": ("optimizer", "for x, in loader: learn(x)"),
    "a closure": (
        "optimizer",
        "o = torch.optim.LBFGS(model.parameters(), max_iter=3)\n"
        "for x, in loader:\n"
        "    def closure():\n"
        "        o.zero_grad(); loss = model(x).pow(2).mean(); loss.backward(); return loss\n"
        "    o.step(closure)",
    ),
    "accumulation": (
        "loader",
        "for i, (x,) in enumerate(loader):\n"
        "    model(x).mean().backward()\n"
        "    if i % 2: o.step(); o.zero_grad()",
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_launch_without_phases_measures_the_same(name: str, tmp_path: Path) -> None:
    kind, loop = LOOPS[name]
    timings, events = [], []
    for phases in (True, False):
        folder = tmp_path / str(phases)
        folder.mkdir()
        plan = {
            "ident": int("LBFGS" in loop or "batches that" in name),
            "phases": phases,
            "seed": 0,
            "warmup_steps": 25,
            "measure_steps": 21,
        }
        run = run_loop(loop, folder, kind, **plan)
        assert run.said() == []
        timings.append(launch_timing(run.channel, Boundary(kind=kind, ident=plan["ident"])))
        events.append(len(run.events[run.main_pid]))
    whole, bare = timings
    assert bare.ended == whole.ended == "measured"
    assert bare.losses == whole.losses
    assert bare.samples == pytest.approx(21 * 4) and whole.samples == pytest.approx(21 * 4)
    assert len(bare.step_s) == len(whole.step_s) == 21
    assert events[1] < events[0]


@pytest.mark.parametrize("kind", ["loader", "backward"])
def test_a_launch_without_phases_ceases_to_look_at_optimizer_steps(
    kind: str, tmp_path: Path
) -> None:
    loop = (
        "for x, in loader: learn(x)\n"
        "from torch.optim import optimizer\n"
        "print(len(optimizer._global_optimizer_post_hooks), hasattr(o.zero_grad, '__wrapped__'))"
    )
    run = run_loop(loop, tmp_path, kind, phases=False, after="continue", warmup_steps=80)
    plain = run_plain(["train.py"], tmp_path, forked=True)
    assert plain.returncode == 0, plain.stderr
    assert (run.stdout, run.said()) == (plain.stdout, [])


@pytest.mark.parametrize(("loader", "expected"), [("loader", True), ("other", False)])
def test_evaluation_on_the_training_loader_needs_the_phases(
    loader: str, expected: bool, tmp_path: Path
) -> None:
    loop = (
        "other = torch.utils.data.DataLoader(data, batch_size=20)\n"
        "for _ in range(2):\n"
        "    for x, in loader: learn(x)\n"
        "    model.eval()\n"
        f"    for x, in {loader}: model(x)\n"
        "    model.train()"
    )
    (tmp_path / "train.py").write_text(SETUP.replace("TOOL", repr(TOOL)) + loop)
    run = run_probed(["train.py"], tmp_path, tmp_path, forked=True, timeout=600)
    events, _, _ = read_channel(run.channel)
    assert evaluates_training_loader(events[run.main_pid]) is expected
