"""Advice on training through the front door: tried in real launches, and apart from speed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from light_torch import LIGHT
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.advice.candidates import candidates
from torchdoctor.reports.formats import rendered
from torchdoctor.schema import Diagnosis
from torchdoctor.schema.record_files import read_report

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("advice")]  # share one run

DECAYED = f"""
import pathlib, time, torch
{LIGHT}from torch.utils.data import DataLoader, TensorDataset
pathlib.Path("weights.txt").write_text("trained")
torch.manual_seed(0)
x = 0.1 * torch.randn(4096, 10)
y = x @ torch.full((10, 1), 10.0) + 0.1 * torch.randn(4096, 1)
model = torch.nn.Linear(10, 1, bias=False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.01)
while True:
    for a, b in DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True):
        loss = 0.5 * (model(a) - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.002)  # takes no processor
"""


def run(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
    """report.json of a run of this program."""
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-X", "faulthandler", "-m", "torchdoctor.cli.front", "run"]
    command += ["--quiet", "--output", "out", "--allow-training-changes"]
    with subprocess.Popen(
        [*command, *arguments, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
    ) as ran:
        try:
            output, _ = ran.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            ran.send_signal(signal.SIGABRT)  # its threads' stacks tell where it stood still
            launches = sorted(path.name for path in (folder / "out").rglob("launches/*"))
            pytest.fail(f"did not end; {launches}\n{ran.communicate(timeout=60)[0]}")
    assert ran.returncode == 0, output
    found: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())
    return found


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("advice")
    (folder / "weights.txt").write_text("mine")
    return folder, run(folder, DECAYED, "--budget", "3m", "--fixes", "adamw")


def trial(report: dict[str, Any], fix: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [one for one in report["training_trials"] if one["fix"] == fix]
    return found


def test_its_losses_are_compared_and_the_trials_leave_no_trace(
    tried: tuple[Path, dict[str, Any]],
) -> None:
    folder, report = tried
    adamw = trial(report, "adamw")
    assert adamw["comparison"]["pairs"] == adamw["launches"] == 3
    assert (folder / "weights.txt").read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == [*("out", "train.py", "weights.txt")]


def test_it_stands_apart_from_speed(tried: tuple[Path, dict[str, Any]]) -> None:
    folder, report = tried
    assert report["recommendation"]["fixes"] == []
    assert report["recommendation"]["patch"] is None
    (advice,) = report["recommendation"]["also_offered"]
    assert (advice["fix"], advice["aim"]) == ("adamw", "training")
    assert advice["warning"]
    assert not [x for x in report["trials"] if x["speedup"] is not None]
    launches = [path.name for path in (folder / "out").rglob("launches/*")]
    assert sum("training-adamw" in name for name in launches) == 3


def test_every_format_shows_what_came_out_and_what_it_may_cost(
    tried: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = tried
    read = read_report(folder / "out" / "report.json")
    for text in (rendered(read, "terminal"), rendered(read, "markdown"), rendered(read, "html")):
        plain = " ".join(text.replace("\\", "").split())
        assert "torch.optim.AdamW(model.parameters()" in plain
        assert "Tried: " in plain
        [advised] = [fix for fix in read.recommendation.also_offered if fix.aim == "training"]
        assert advised.warning and plain.count(" ".join(advised.warning.split())) == 1


def test_a_program_that_updates_its_weights_by_hand_is_refused_with_the_reason() -> None:
    by_hand = recording({"processes": [{"pid": 1, "optimizers": []}]})
    tried, refused = candidates(
        by_hand,
        Diagnosis(bottleneck="cpu"),
        catalogue.fixes(),
        fixes=["lr-schedule"],
        allow_training_changes=True,
    )
    (trial,) = [x for x in refused if x.fixes.only == "lr-schedule"]
    assert not tried and trial.why.fact == "no-learning-rate"
