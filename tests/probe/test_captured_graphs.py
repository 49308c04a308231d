"""Programs that capture CUDA graphs: nothing of ours gets into a capture, and replays are steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probed import Probed, run_plain, run_probed
from simulated_gpu import devices

from torchdoctor.probe import step_log
from torchdoctor.watch.recording import read_run

# In one process, which starts a server of programs for each kind of device.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated-gpu")]
WARM, REPLAYS = 3, 20
HEAD = """
import simulated_gpu.attach, json, torch
torch.manual_seed(0)
model = torch.nn.Linear(16, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(8, 16).cuda()

def compute():
    loss = model(x).square().mean()
    LEARNS
    return loss

def end():
    kernels = simulated_gpu.attach.counts()["kernels"]
    print(json.dumps([loss.item(), torch.cuda._captured.events, kernels]))
"""
STEP = "optimizer.zero_grad(); loss.backward(); optimizer.step()"
BY_GRADIENTS = """
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.data.sub_(0.01 * gradient)
"""
REPLAYED = f"""
for _ in range({WARM}):
    compute()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = compute()
for _ in range({REPLAYS}):
    x.copy_(torch.randn(8, 16))
    graph.replay()
end()
"""
CALLABLES = f"""
model = torch.cuda.make_graphed_callables(model, (x,))
for _ in range({REPLAYS}):
    loss = compute()
end()
"""
OBSERVED = {"sample_stacks": True}


def timed(kind: str, **more: Any) -> dict[str, Any]:
    """A timed launch whose steps such events separate."""
    boundary = {"kind": kind, "ident": 0, "every": 1, **more}
    return {"purpose": "time", "phases": False, "measure_steps": 10, "boundary": boundary}


def train(folder: Path, program: str, learns: str = STEP, **plan: Any) -> tuple[Probed, list[Any]]:
    """Run it; its last loss, how many events went into captures, and how many kernels ran."""
    (folder / "train.py").write_text(HEAD.replace("LEARNS", learns) + program)
    env = devices.variables()
    if not plan:
        ran = run_plain(["train.py"], folder, forked=True, **env)
    else:
        inside = folder / f"probed-{len(list(folder.iterdir()))}"
        inside.mkdir()
        ran = run_probed(
            ["train.py"], folder, inside, env=env, forked=True, after="continue", **plan
        )
        assert ran.said() == []
    assert ran.returncode == 0, ran.stderr
    return ran, json.loads(ran.stdout.splitlines()[-1])


def test_a_program_that_trains_by_replays_has_its_steps(tmp_path: Path) -> None:
    _, (loss, events, kernels) = train(tmp_path, REPLAYED)
    assert events == 0
    ran, told = train(tmp_path, REPLAYED, **OBSERVED)
    assert told == [loss, 0, kernels]
    for code in (
        step_log.BACKWARD_BEGIN,
        step_log.BACKWARD_END,
        step_log.OPTIMIZER_BEGIN,
        step_log.OPTIMIZER_END,
    ):
        assert ran.count(code) == WARM + REPLAYS, code
    assert ran.main["optimizers"][0]["steps"] == WARM + REPLAYS
    rows = ran.events[ran.main_pid]
    assert (rows[rows[:, 0] == step_log.DEVICE, 3] >= 0).all(), "no event of the device was lost"


@pytest.mark.parametrize("kind", ["optimizer", "backward"])
def test_a_launch_is_timed_by_replays_and_reads_each_loss(tmp_path: Path, kind: str) -> None:
    _, (loss, _, _) = train(tmp_path, REPLAYED)
    ran, told = train(tmp_path, REPLAYED, **timed(kind))
    assert told[:2] == [loss, 0]
    assert ran.count(step_log.WINDOW_END) == 1
    assert ran.count(step_log.BOUNDARY) == 13, "two to warm up, ten, and the end of the last"
    losses = ran.losses()
    assert len(losses) >= 10 and np.isfinite(losses).all()
    assert len(set(losses[WARM:])) == len(losses) - WARM, "each its own, not the graph's last"


def test_gradients_without_a_backward_count_at_replays(tmp_path: Path) -> None:
    _, (loss, _, _) = train(tmp_path, REPLAYED, BY_GRADIENTS)
    observed, told = train(tmp_path, REPLAYED, BY_GRADIENTS, **OBSERVED)
    assert told[:2] == [loss, 0]
    assert observed.count(step_log.GRADIENT_END) == WARM + REPLAYS
    plan = timed("backward", learned_by="autograd.grad")
    ran, told = train(tmp_path, REPLAYED, BY_GRADIENTS, **plan)
    assert told[:2] == [loss, 0]
    assert ran.count(step_log.WINDOW_END) == 1


@pytest.mark.parametrize("plan", [OBSERVED, timed("backward")], ids=["observed", "timed"])
def test_the_graphs_of_graphed_callables_are_a_part_of_the_users_passes(
    tmp_path: Path, plan: dict[str, Any]
) -> None:
    _, (loss, _, _) = train(tmp_path, CALLABLES)
    goes_on = {**plan, "measure_steps": 1000}
    ran, told = train(tmp_path, CALLABLES, **goes_on)
    assert told[:2] == [loss, 0]
    assert ran.count(step_log.BACKWARD_END) == REPLAYS
    if plan is OBSERVED:
        assert ran.count(step_log.OPTIMIZER_END) == REPLAYS


def test_a_spoilt_capture_raises_as_on_a_gpu(tmp_path: Path) -> None:
    for call in ("event.query()", "torch.cuda.synchronize()", "x.sum().item()", "x.cpu()"):
        program = f"""
event, graph = torch.cuda.Event(), torch.cuda.CUDAGraph()
event.record()
said = []
try:
    with torch.cuda.graph(graph):
        try:
            {call}
        except RuntimeError as error:
            said.append(str(error))
except RuntimeError as error:
    said.append(str(error))
print(json.dumps(said))
"""
        _, said = train(tmp_path, program)
        assert ["not permitted" in said[0], "previous error" in said[1]] == [True, True], call


def test_watch_counts_replays_as_steps_and_keeps_out_of_captures(tmp_path: Path) -> None:
    _, (loss, _, _) = train(tmp_path, REPLAYED)
    ran, told = train(tmp_path, REPLAYED, watch={})
    assert told[:2] == [loss, 0]
    assert ran.channel is not None
    [log] = read_run(ran.channel).processes
    assert log.steps.step[-1] == WARM + REPLAYS
    assert log.process.probe_failed is None


@pytest.mark.parametrize("users", ["", "1"])
def test_windows_of_watch_leave_cupti_as_it_is_for_graphs(tmp_path: Path, users: str) -> None:
    """Taken down at a window's end, it crashes graphs at the next one: torch says so."""
    sets = f"import os; os.environ['TEARDOWN_CUPTI'] = {users!r}" if users else ""
    program = f"""
import os, sys
profiling = sys.modules["_torchdoctor_probe_attach"]._watch.profiling
profiling._began_s -= 10_000  # windows may take their share of hours
{sets}
graph = torch.cuda.CUDAGraph()
for _ in range({WARM}):
    compute()
with torch.cuda.graph(graph):
    loss = compute()
closed = []
closing = profiling._close
profiling._close = lambda step: (closing(step), closed.append(step))
for _ in range(100_000):
    x.copy_(torch.randn(8, 16))
    graph.replay()
    profiling._watch.log.work()
    if profiling.profiler is None:
        profiling.told = len(closed) + 1
    if len(closed) == 2:
        break
names = "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"
print(json.dumps([[os.environ.get(name) for name in names], len(closed)]))
"""
    _, told = train(tmp_path, program, watch={}, profile=True)
    assert told == [[users or "0", "1"], 2]
