"""Advice on training tried on real programs under the real probe, without the tool around them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from partial_recordings import recording
from probed import run_probed

from torchdoctor.advice import catalogue
from torchdoctor.bench.engine import Engine
from torchdoctor.bench.launch_timing import launch_timing
from torchdoctor.launch.launch_spec import LaunchSpec, plan_entries
from torchdoctor.schema import Boundary, LaunchTiming, TrainingTrial
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.log import Budget, Log
from torchdoctor.trials.training_trials import TrainingTrials

pytestmark = pytest.mark.slow
STEPS = 120

LEAST_SQUARES = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(1024, 10)
y = x @ torch.full((10, 1), 1.0) + 0.1 * torch.randn(1024, 1)
model = torch.nn.Linear(10, 1, bias=False)
optimizer = OPTIMIZER
while True:
    for a, b in DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True):
        loss = 0.5 * (model(a) - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
ADAMW = TrainingTrial(fix="adamw", verdict="not-tried", sentence="")


@dataclass
class Programs:
    """Starts a program in the place of `ProgramLaunches`."""

    program: str
    folder: Path
    started: list[str] = field(default_factory=list)
    side_by_side, blocks, expected_s = False, None, 0.0

    def shortened_s(self, half_s: float) -> float:
        return half_s

    def alone(self, arm: LaunchSpec, most_s: float) -> LaunchTiming:
        folder = self.folder / f"{len(self.started)}"
        folder.mkdir()
        (folder / "train.py").write_text(self.program)
        self.started.append("+".join(fix.id for fix in arm.fixes))
        boundary = Boundary(kind="optimizer")
        ran = run_probed(
            ["train.py"],
            folder,
            folder,
            forked=True,
            purpose="time",
            phases=False,
            boundary={"kind": "optimizer", "ident": 0, "every": 1, "learned_by": "backward"},
            warmup_steps=10,
            measure_steps=STEPS - 10,
            fixes=plan_entries(arm.fixes),
            seed=0,
            seed_offset=arm.seed_offset,
            fingerprint_batches=5,
        )
        assert not ran.said()
        return launch_timing(folder / "channel", boundary)


def tried(folder: Path, advice: TrainingTrial, optimizer: str) -> TrainingTrial:
    programs = Programs(LEAST_SQUARES.replace("OPTIMIZER", optimizer), folder)
    engine: Any = Engine(programs, random.Random(0))  # type: ignore[arg-type]
    specs = ArmSpecs(catalogue.fixes(), recording({}))
    trials = TrainingTrials(Log(engine, Budget(None)), specs, [advice])
    return trials.results().trials[0]


def test_a_decay_of_next_to_nothing_shows_no_difference(tmp_path: Path) -> None:
    adam = "torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)"
    outcome = tried(tmp_path, ADAMW, adam)
    assert outcome.verdict == "no-difference", outcome.sentence
    assert outcome.launches == 3
    comparison = outcome.comparison
    assert comparison is not None and comparison.pairs == 3
    assert comparison.step_speedup is not None
