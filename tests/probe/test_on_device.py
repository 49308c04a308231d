"""What the probe does to a program on a GPU, as the device itself counts it: a launch that is
observed waits for nothing that the program would not wait for, and a timed one only between its
blocks; no kernel, no copy and no memory of the device is the probe's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from probed import Probed, run_plain, run_probed
from simulated_gpu import devices

from torchdoctor.observe.events import from_rows
from torchdoctor.probe import step_log
from torchdoctor.probe.accelerator import Accelerator

# In one process, which starts a server of programs for each kind of device.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulated-gpu")]
# Of each of six products a step. The host is far ahead of the slow device, on any machine.
SLOW_MS, FAST_MS = 100, 2
STEP_S = 0.6
SCRIPT = """
import simulated_gpu.attach, json, torch
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(LAST * 4, 16))
model = torch.nn.Sequential(torch.nn.Linear(16, 16, bias=False), torch.nn.Linear(16, 1, bias=False))
model = model.cuda()
weights = torch.ones(16, 16, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True):
    loss = model(x.to("cuda", non_blocking=True) @ weights).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    counts = simulated_gpu.attach.counts()
    counts["memory"] = torch.cuda.memory_allocated()
    open("counts.json", "w").write(json.dumps(counts))
"""
BOUNDARY = {"kind": "loader", "ident": 0, "every": 1}
EXACT = ("kernels", "copies", "synchronisations", "mallocs", "frees", "busy_ns", "memory")


def train(folder: Path, steps: int, product_ms: int, **plan: Any) -> tuple[Probed, dict[str, int]]:
    """Run the script, with a plan under the probe; the counts of the device until its last step."""
    (folder / "train.py").write_text(SCRIPT.replace("LAST", str(steps)))
    env = {**devices.variables(), "SIMULATED_GPU": f"kernel:mm={product_ms * 1000}"}
    if plan:
        ended = run_probed(["train.py"], folder, folder, env=env, forked=True, **plan)
        assert ended.said() == []
    else:
        ended = run_plain(["train.py"], folder, forked=True, **env)
    assert ended.returncode == 0, ended.stderr
    return ended, json.loads((folder / "counts.json").read_text())


ASKS = """
    import os
    with open("cupti.txt", "w") as file:
        file.write(os.environ.get("TEARDOWN_CUPTI", ""))
    asked = globals().get("asked", 0) + 1
    if asked == 6:
        import sys
        session = sys.modules["_torchdoctor_probe_attach"]._session
        steps = {"wait": 1, "warmup": 1, "active": 2, "analyse": True, "analysed_steps": 1}
        profile = {**steps, "with_stack": False, "record_shapes": True}
        boundary = {"kind": "loader", "ident": 0, "every": 1}
        with open("%s/window-%d.json" % (session.channel, session.number), "w") as file:
            json.dump({"boundary": boundary, "profile": profile}, file)
"""


def test_a_window_that_is_asked_for_leaves_the_observed_device_times(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("LAST", "4000") + ASKS)
    env = {**devices.variables(), "SIMULATED_GPU": f"kernel:mm={FAST_MS * 1000}"}
    plan = {"purpose": "observe", "sample_stacks": True, "window_on_request": True}
    ran = run_probed(["train.py"], tmp_path, tmp_path, env=env, forked=True, **plan)
    assert ran.stopped_by == "done", ran.stderr
    assert ran.said() == []
    rows = ran.events[ran.main_pid]
    [begins] = rows[rows[:, 0] == step_log.OBSERVED, 2]
    device = rows[rows[:, 0] == step_log.DEVICE]
    assert (device[:, 3] >= 0).all() and (device[:, 2] <= begins).all()
    before = from_rows(rows[rows[:, 2] <= begins])
    assert before.device_clock and len(before.at(step_log.OPTIMIZER_END)) >= 6
    assert len(list(ran.channel.glob("trace-*.json.gz"))) == 1
    told = json.loads(next(ran.channel.glob("observed-*.json")).read_text())
    assert "analysed_steps" not in told
    assert ran.main["analysed_steps"] == 1
    assert (tmp_path / "cupti.txt").read_text() == "0", "graphs go on in the analysed steps"


def test_an_observed_launch_adds_nothing_to_the_device_and_knows_its_time(tmp_path: Path) -> None:
    _, alone = train(tmp_path, 8, SLOW_MS)
    observed, counts = train(tmp_path, 8, SLOW_MS, purpose="observe", sample_stacks=True)
    assert {name: counts[name] for name in EXACT} == {name: alone[name] for name in EXACT}
    rows = observed.events[observed.main_pid]
    ends = from_rows(rows).t_ns[from_rows(rows).at(step_log.BACKWARD_END)]
    steps_s = np.diff(ends[2:]) / 1e9
    assert len(ends) == 8
    assert float(steps_s.mean()) == pytest.approx(STEP_S, rel=0.02)


def test_a_timed_launch_waits_for_the_device_at_the_ends_of_its_blocks_alone(
    tmp_path: Path,
) -> None:
    _, alone = train(tmp_path, 24, FAST_MS)
    (tmp_path / "channel").mkdir(exist_ok=True)
    for turn in range(6):
        (tmp_path / "channel" / f"go-{turn}").touch()  # it is always its turn
    turns = {"warmup_steps": 3, "block_steps": 4, "discard_steps": 1, "block_most_s": 60.0}
    timed, counts = train(
        tmp_path, 24, FAST_MS, purpose="time", phases=False, boundary=BOUNDARY, turns=turns
    )
    blocks, waits = timed.count(step_log.BLOCK_BEGIN), len(list(tmp_path.glob("channel/go-*")))
    assert blocks > 1
    # At both ends of a block and before each turn; each loss that is then read waits by itself.
    losses = 24
    assert counts["synchronisations"] <= 2 * blocks + waits + losses
    assert counts["copies"] <= alone["copies"] + losses
    assert {name: counts[name] for name in ("kernels", "busy_ns", "memory")} == {
        name: alone[name] for name in ("kernels", "busy_ns", "memory")
    }


def test_no_more_events_are_recorded_than_a_bound_while_the_device_has_come_to_none(
    tmp_path: Path,
) -> None:
    class Event:
        reached = False

        def query(self) -> bool:
            return Event.reached

        def elapsed_time(self, later: Any) -> float:
            return 1.0

    class Accelerator:
        recorded = 0

        def is_capturing(self) -> bool:
            return False

        def event(self, learns: bool) -> Event:
            self.recorded += 1
            return Event()

    accelerator, bound = Accelerator(), step_log._MOST_WAITING
    log = step_log.DeviceLog(str(tmp_path), 1, lambda: None, accelerator)
    for _ in range(3 * bound):
        log.add(step_log.BACKWARD_END)
    log.flush()
    assert accelerator.recorded == bound
    Event.reached = True
    log.flush()
    log.add(step_log.BACKWARD_END)
    assert accelerator.recorded == bound + 1


SECOND_DEVICE = """
import simulated_gpu.attach, json, torch
torch.manual_seed(0)
model = torch.nn.Linear(16, 16, bias=False).to("cuda:1")  # and nobody makes it the current one
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.ones(4, 16, device="cuda:1")
for step in range(24):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
counts = [simulated_gpu.attach.counts(index)["synchronisations"] for index in (0, 1)]
open("counts.json", "w").write(json.dumps(counts))
"""


def timed_on_two(program: str, folder: Path) -> Probed:
    """The launch of a trial, in blocks that take turns, with two devices."""
    (folder / "train.py").write_text(program)
    settings = f"devices=2;kernel:mm={FAST_MS * 1000}"
    boundary = {"kind": "optimizer", "ident": 0, "every": 1}
    (folder / "channel").mkdir()
    for turn in range(6):
        (folder / "channel" / f"go-{turn}").touch()
    turns = {"warmup_steps": 3, "block_steps": 4, "discard_steps": 1, "block_most_s": 60.0}
    timed = run_probed(
        ["train.py"], folder, folder, forked=True, purpose="time", phases=False,
        boundary=boundary, turns=turns, env={**devices.variables(), "SIMULATED_GPU": settings},
    )  # fmt: skip
    assert timed.said() == [] and timed.returncode == 0, timed.stderr
    return timed


def test_a_program_on_the_second_gpu_is_waited_for_and_described_there(tmp_path: Path) -> None:
    timed = timed_on_two(SECOND_DEVICE, tmp_path)
    first, second = json.loads((tmp_path / "counts.json").read_text())
    assert first == 0 and second >= 2 * timed.count(step_log.BLOCK_BEGIN) > 2
    facts = timed.facts[timed.main_pid]
    [used] = facts["used_devices"]
    assert used["index"] == 1 and used["uuid"].endswith("1") and used["compute_capability"] == "8.0"
    assert facts["peak_gpu_memory_bytes"] == used["peak_bytes"] > 0


# A small tensor lies on the current device before the model is anywhere, and a loader is begun.
BESIDE = SECOND_DEVICE.replace(
    "model =",
    """assert torch.ones(1, device="cuda:0").device.index == 0
next(iter(torch.utils.data.DataLoader(range(4))))
model =""",
)


@pytest.mark.parametrize("program", [SECOND_DEVICE, BESIDE], ids=["alone", "beside"])
def test_the_device_s_time_is_that_of_the_gpu_that_computes(tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program)
    settings = f"devices=2;kernel:mm={SLOW_MS * 1000}"
    observed = run_probed(
        ["train.py"], tmp_path, tmp_path, forked=True, purpose="observe", sample_stacks=True,
        env={**devices.variables(), "SIMULATED_GPU": settings},
    )  # fmt: skip
    rows = observed.events[observed.main_pid]
    ends = from_rows(rows).t_ns[from_rows(rows).at(step_log.BACKWARD_END)]
    steps_s = np.diff(ends[2:]) / 1e9
    assert float(steps_s.mean()) == pytest.approx(2 * SLOW_MS / 1e3, rel=0.02)


PIPELINE = """
import simulated_gpu.attach, json, torch
torch.manual_seed(0)
class Stages(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 64, bias=False).to("cuda:0")
        self.second = torch.nn.Linear(64, 1, bias=False).to("cuda:1")
    def forward(self, x):
        return self.second(self.first(x).to("cuda:1"))
model = Stages()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.ones(4, 16, device="cuda:0")
for step in range(24):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
counts = [simulated_gpu.attach.counts(index)["synchronisations"] for index in (0, 1)]
open("counts.json", "w").write(json.dumps(counts))
"""


def test_a_model_over_two_gpus_is_waited_for_on_both_and_its_memory_is_summed(
    tmp_path: Path,
) -> None:
    timed = timed_on_two(PIPELINE, tmp_path)
    waits = json.loads((tmp_path / "counts.json").read_text())
    assert min(waits) >= 2 * timed.count(step_log.BLOCK_BEGIN) > 2
    facts = timed.facts[timed.main_pid]
    used = facts["used_devices"]
    assert [device["index"] for device in used] == [0, 1]
    assert facts["peak_gpu_memory_bytes"] == sum(device["peak_bytes"] for device in used)
    assert all(device["peak_bytes"] > 0 for device in used)
    # Of three products a step (the input needs no gradient) one is the first stage's gradient; the
    # stages wait for each other only through the copies between them.
    observed = run_probed(
        ["train.py"], tmp_path, tmp_path, forked=True, purpose="observe", sample_stacks=True,
        env={**devices.variables(), "SIMULATED_GPU": f"devices=2;kernel:mm={SLOW_MS * 1000}"},
    )  # fmt: skip
    log = from_rows(observed.events[observed.main_pid])
    assert log.device_clock
    steps_s = np.diff(log.t_ns[log.at(step_log.OPTIMIZER_END)][2:]) / 1e9
    assert float(steps_s.mean()) >= 2 * SLOW_MS / 1e3 * 0.98


def test_which_gpu_computes_is_asked_once_and_not_at_every_event() -> None:
    """On a machine of several GPUs each event of the log asked for the memory of all of them."""
    asked: list[int] = []

    def max_memory_allocated(index: int) -> int:
        asked.append(index)
        return 4096 if index == 0 else 0

    event = SimpleNamespace(record=lambda *_: None)
    module = SimpleNamespace(
        synchronize=lambda *_: None,
        device_count=lambda: 8,
        current_device=lambda: 0,
        is_initialized=lambda: True,
        max_memory_allocated=max_memory_allocated,
        Event=lambda enable_timing: event,
    )
    known = SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type="cuda"))
    accelerator = Accelerator(
        SimpleNamespace(accelerator=known, get_device_module=lambda _: module)
    )
    for _ in range(100):
        assert accelerator.event() is event
    assert asked == list(range(8))
