"""What `watch` gives beside its log: figures for exporters, TensorBoard, and the user's tracker."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import watched_folders
from commands import torchdoctor
from test_recording import steps

from torchdoctor.watch.inside import layout
from torchdoctor.watch.live_figures import LiveFigures
from torchdoctor.watch.recording import Process, Steps
from torchdoctor.watch.summary import own_cost

TRACKER = """
import atexit
class _Summary(dict):
    pass
class _Run:
    def __init__(self):
        self.summary = _Summary()
run = None
def finish():
    global run
    if run is not None:
        print({name: value > 0 for name, value in sorted(run.summary.items())}, flush=True)
    run = None
def init():
    global run
    run = _Run()
    atexit.register(finish)
    return run
"""
TRAIN = """
import torch, wandb
wandb.init()
w = torch.ones(2, requires_grad=True)
for _ in range(50):
    (w * w).sum().backward()
    w.data -= 0.1 * w.grad
"""


def test_figures_are_openmetrics_and_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, metrics = tmp_path / "run" / "watch", tmp_path / "node.prom"
    rows, process = steps(100), Process(host="a", pid=7, rank=1, start_unix_ns=10**18)
    watched_folders.write_process(run, process, rows[:60])
    figures = LiveFigures(run, metrics, tmp_path / "logs")
    figures.write({"memory_free_bytes": 5e9})
    watched_folders.write_process(run, process, rows)
    figures.write({})
    figures.close()
    lines = metrics.read_text().splitlines()
    assert lines[-1] == "# EOF"
    label = '{host="a",pid="7",rank="1"'
    assert f"torchdoctor_watch_steps_total{label}}} 100" in lines
    assert f"torchdoctor_watch_step_seconds{label}}} 0.005" in lines
    assert f"torchdoctor_watch_samples_per_second{label}}} 6400" in lines
    assert f'torchdoctor_watch_phase_ratio{label},phase="wait"}} 0.2000' in lines
    assert lines.index("# TYPE torchdoctor_watch_steps counter") == 0
    (folder,) = {path.parent for path in (tmp_path / "logs").rglob("events*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    points = events.Tensors("watch/step_s")
    assert [point.step for point in points] == [60, 100]


def test_the_cost_of_the_hooks_is_read_off_the_blocks_without(tmp_path: Path) -> None:
    rows = steps(2_000)
    chance = np.random.default_rng(0)
    rows["other"] = chance.normal(0.0001, 0.00002, len(rows))  # of 5 ms: 2 %
    for block in range(100, 1_900, 200):
        rows["flags"][block], rows["steps"][block] = layout.PROBE_OFF, 40
        for phase in layout.PHASES[:-1]:
            rows[phase][block] = 0
        rows["other"][block] = 0.005 * 40
    total_ns = sum(rows[phase].astype(float) for phase in layout.PHASES) * 1e9
    rows["start_ns"] = 10**12 + np.r_[0, np.cumsum(total_ns)[:-1]].astype(np.int64)
    cost = own_cost(Steps(rows=rows))
    assert cost is not None
    assert cost.low < 1.02 < cost.high and 1.015 < cost.estimate < 1.025
    assert own_cost(Steps(rows=rows[:700])) is None


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--step-on", "epochs", "--step-on takes loader, optimizer, backward or explicit"),
        ("--metrics-file", "nowhere/x.prom", "name a file in a folder that exists"),
        ("--output", "train.py", "name another folder with --output"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, option: str, value: str, words: str
) -> None:
    (tmp_path / "train.py").write_text("import torch; print('ran')")
    refused = torchdoctor("watch", option, value, "train.py", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert words in " ".join(refused.stderr.split())
    assert {path.name for path in tmp_path.iterdir()} == {"train.py"}


@pytest.mark.slow
@pytest.mark.parametrize("asked", [True, False])
def test_the_summary_goes_to_the_programs_tracker_if_asked(tmp_path: Path, asked: bool) -> None:
    (tmp_path / "wandb.py").write_text(TRACKER)
    (tmp_path / "train.py").write_text(TRAIN)
    words = [sys.executable, "-m", "torchdoctor", "watch", "--output", str(tmp_path / "run")]
    words += ["--log-to-tracker"] * asked + ["--", sys.executable, "train.py"]
    program = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (program.returncode, program.stderr) == (0, "")
    assert ("'torchdoctor/steps': True" in program.stdout) is asked
    assert program.stdout.strip() == "{}" or asked
