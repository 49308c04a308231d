"""A small program, and the pair that nodes of tests measure: torch is started twice for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from light_torch import BEFORE_TORCH, LIGHT

from torchdoctor.bench.block_plan import TurnBlocks
from torchdoctor.bench.engine import PairTask, PairTimings
from torchdoctor.bench.failures import Lost
from torchdoctor.bench.measurement import Pace
from torchdoctor.clusters.fleet import Fleet
from torchdoctor.clusters.tasks import Launches
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.observe.window import Window
from torchdoctor.schema import Boundary, Workload

SCRIPT = f"""
{BEFORE_TORCH}import os, time, torch
{LIGHT}
weight = torch.zeros(4, requires_grad=True)
while True:
    time.sleep(float(os.environ.get("STEP_S", "0.02")))
    (weight * weight).sum().backward()
    weight.data -= 0.1 * weight.grad
    weight.grad = None
"""
# A loader's worker fetches while the program sleeps: fetching takes most of each step.
LOADING = f"""
import time, torch
{LIGHT}
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1000000

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4)

weight = torch.zeros(4, requires_grad=True)
for rows in torch.utils.data.DataLoader(Rows(), batch_size=4):
    (rows * weight).sum().backward()
    weight.data -= 0.1 * weight.grad
    weight.grad = None
"""
# With a loader of its own kind, fixes of it cannot be switched: each number needs pairs.
OWN_LOADER = LOADING.replace("in torch.utils.data.DataLoader(", "in Loader(").replace(
    "\nweight =",
    "\nclass Loader(torch.utils.data.DataLoader):\n    def __iter__(self):\n"
    "        return super().__iter__()\n\nweight =",
    1,
)
# Updated by hand, and slower by what its second version says.
PACED = "import torch, pace\n" + SCRIPT.replace("import os, time, torch", "import time").replace(
    'float(os.environ.get("STEP_S", "0.02"))', "pace.STEP_S"
)
TURNS = TurnBlocks(
    warmup_steps=2, block_steps=5, discard_steps=1, blocks=2, step_s=0.02, setup_s=59.4
)
QUICK = LaunchSpec(name="quick", variables={"STEP_S": "0.002"})


def program(folder: Path, text: str = SCRIPT) -> Workload:
    """The program, in a folder of its own."""
    script = folder / "train.py"
    script.write_text(text)
    command = [sys.executable, str(script)]
    return Workload(command=command, cwd=str(folder), python=sys.executable, script=str(script))


def slower_by_a_commit(folder: Path) -> None:
    """A repository whose working tree takes four times as long for each step as its commit."""
    (folder / "train.py").write_text(PACED)
    (folder / "pace.py").write_text("STEP_S = 0.02\n")
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@here"]
    for words in (["init", "-q"], ["add", "train.py", "pace.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    (folder / "pace.py").write_text("STEP_S = 0.08\n")


def gate_of_two_nodes(
    folder: Path, on: str, environment: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """What weakens a gate that finds the slower version: the values of each fact."""
    slower_by_a_commit(folder)
    command = [sys.executable, "-m", "torchdoctor", "gate", "--quiet", "--on", on, "--nodes=2"]
    command += ["--against=HEAD", "--steps=10", "--budget=4m", "--output=out"]
    done = subprocess.run(
        [*command, "train.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((folder / "out" / "gate.json").read_text())
    assert report["verdict"] == "slower", report
    return remarked(report)


def remarked(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What weakens a stored report: the values of each fact, of the last one of a kind."""
    return {remark["fact"]: remark["values"] for remark in report["remarks"]}


def launches(workload: Workload, **changes: Any) -> Launches:
    """How its launches are made."""
    boundary = Boundary(kind="backward")
    known = {
        "seed": 0,
        "timeout_s": 120.0,
        "forks": False,
        "sandbox": True,
        "network": True,
        "stdin": None,
        "files_read": None,
        "pace": Pace(start_s=5.0, step_s=0.02, boundary=boundary),
        "window": Window(warmup_steps=2, measure_steps=10, max_window_s=5.0),
        "turns": TURNS,
        "cold": False,
    }
    return Launches(workload=workload, **{**known, **changes})


def pair(arm: LaunchSpec = QUICK) -> PairTask:
    """Both sides at once."""
    return PairTask(arms=(UNTOUCHED, arm), beside=True, most_s=200.0)


def ended(fleet: Fleet, most_s: float = 240.0) -> PairTimings | Lost:
    """What became of the first pair that ends."""
    outcome = fleet.end(most_s)
    assert outcome is not None, "no pair ended in time"
    return outcome[1]


def median_ratio(measured: PairTimings | Lost) -> float:
    """Steps of the untouched program over those of the arm."""
    assert isinstance(measured, PairTimings), measured
    against, arm = (sorted(timing.step_s) for timing in measured.timings)
    assert against and arm, measured.timings
    return against[len(against) // 2] / arm[len(arm) // 2]


def wait_for(ready: Any, seconds: float = 180.0) -> None:
    """Until it is so."""
    given_up = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < given_up, "it never came to that"
        time.sleep(0.3)  # squeue and a look at all processes take a while themselves
