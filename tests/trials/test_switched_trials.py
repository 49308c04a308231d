"""A switching launch of a real program, from the fixes to the comparison of its blocks."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from light_torch import LIGHT

from torchdoctor.advice import catalogue
from torchdoctor.bench.engine import Engine
from torchdoctor.bench.measurement import ProgramLaunches
from torchdoctor.bench.pair_times import Estimator, switched_differences
from torchdoctor.bench.record import Recorder
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.workload import workload_of
from torchdoctor.observe.window import Window
from torchdoctor.schema import Environment, FixSet, Recording, SwitchedLaunch, fact
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.arms import Arm
from torchdoctor.trials.ceilings import abandon

pytestmark = pytest.mark.slow

# Accumulates over 4 batches, and has 50 ms more where gradients are filled with zeros.
SCRIPT = f"""
import time, torch
{LIGHT}torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(20000, 8)), batch_size=16)
for number, (x,) in enumerate(loader):
    slow = model.bias.grad is not None and not number % 4
    time.sleep(0.054 if slow else 0.004)
    model(x).square().mean().backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    CRASH
"""


ARMS: list[list[tuple[str, dict[str, Any]]]] = [
    [("set-to-none", {})],
    [("tf32", {})],
    [("ceiling-loader-batches", {"loader": 0})],
]


def launched(
    folder: Path,
    crash: str = "pass",
    arms: list[list[tuple[str, dict[str, Any]]]] = ARMS,
    text: str = SCRIPT,
) -> SwitchedLaunch:
    script = folder / "train.py"
    script.write_text(text.replace("CRASH", crash))
    workload = workload_of([str(script)], cwd=str(folder))
    sandbox = Sandbox.choose("auto", folder, workload)
    recorder = Recorder(workload, folder / "run", sandbox, 0, None, 240.0, forks=True)
    try:
        seen = recorder.observe(None, 2.0, 20.0)
        window = Window(warmup_steps=8, measure_steps=30, max_window_s=5.0)
        loaders = seen.processes[0].loaders
        recording = Recording(
            workload=workload, environment=Environment(), steps=seen.steps, processes=seen.processes
        )
        launches = ProgramLaunches.of_trials(recorder, seen, window, loaders=loaders)
        assert launches.blocks is not None and (text is not SCRIPT or seen.steps.cycle_steps == 4)
        specs = ArmSpecs(catalogue.fixes(), recording)
        return Engine(launches, random.Random(0)).switch(
            [specs.of(FixSet(fixes)) for fixes in arms], 3, most_s=240.0
        )
    finally:
        recorder.close()
        sandbox.close()


@pytest.mark.xdist_group("trials")
def test_blocks_of_a_real_program_show_the_gain(tmp_path: Path) -> None:
    found = launched(tmp_path)
    assert found.ended == "measured", found.why
    assert [one.state for arm in found.arms for one in arm] == [
        "applied",
        "refused",
        "applied",
    ]
    assert found.arms[1][0].why == fact("torch-without-cuda")
    assert all(len(block.step_s) % 4 == 0 for block in found.blocks), "whole cycles"
    assert all(block.samples == 16 * len(block.step_s) for block in found.blocks)
    gains = switched_differences(found.blocks, 1, Estimator(by="mean"))
    # 66 ms a cycle with zeros, 16 ms without, and what the steps themselves take.
    assert len(gains) >= 3 and math.exp(sum(gains) / len(gains)) > 1.3


def test_a_crash_under_a_fix_leaves_what_was_measured_and_says_why(tmp_path: Path) -> None:
    gone = "model.bias.grad is None and number % 4 == 3"
    found = launched(tmp_path, f'if {gone}: raise RuntimeError("lost its gradients")')
    assert found.ended == "failed" and found.why is not None
    assert found.why.values == {
        "exit_code": 1,
        "last_line": "RuntimeError: lost its gradients",
    }
    assert [block.arm for block in found.blocks] == [0, 3]  # the fix came next


def test_who_was_on_when_the_program_failed_is_known(tmp_path: Path) -> None:
    """A program that notices stale values: the ceiling is to blame, and the launch says so."""
    check = "assert x[0, 0].item() == x[0, 0].numpy().item(), 'stale'"
    arms = [[("set-to-none", {})], [("ceiling-answered-waits", {"on_gpu": False})]]
    found = launched(tmp_path, check, arms)
    assert (found.ended, found.failed_in) == ("failed", 2)
    assert found.why is not None and "stale" in found.why.values["last_line"]
    baseline, waits = (Arm(key=key, spec=LaunchSpec(name=key)) for key in ("none", "waits"))
    assert abandon(found, [baseline, waits], [waits], enough=3)
    assert waits.refused is not None and waits.refused.fact == "did-not-go-on"
    assert baseline.refused is None


SLOW_SAMPLES = f"""
import time, torch
{LIGHT}torch.manual_seed(0)
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 20000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.randn(8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(Slow(), batch_size=4):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.xdist_group("trials")
def test_numbers_of_workers_are_compared_within_one_launch(tmp_path: Path) -> None:
    """Samples that sleep: each number of workers makes its batches in its share of the time."""
    numbers = (1, 2, 4)
    arms = [[("loader-workers", {"num_workers": n})] for n in numbers]
    found = launched(tmp_path, arms=arms, text=SLOW_SAMPLES)
    assert [one.state for arm in found.arms for one in arm] == ["applied"] * 3, found
    lengths = {block.arm: len(block.step_s) for block in found.blocks}
    assert lengths[3] % 4 == lengths[2] % 2 == 0, "whole bursts"
    gains = [switched_differences(found.blocks, arm, Estimator(by="mean")) for arm in (1, 2, 3)]
    assert min(map(len, gains)) >= 2, found.why
    one, two, four = (math.exp(sum(each) / len(each)) for each in gains)
    assert two > 1.2 and four > two > one
