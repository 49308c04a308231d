"""Advice on training tried on real programs under the real probe, without the tool around them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from partial_recordings import recording
from probed import run_probed

from torchdoctor.advice import catalogue
from torchdoctor.launch.launch_spec import LaunchSpec, plan_entries
from torchdoctor.pairs.engine import Engine
from torchdoctor.pairs.launch_timing import launch_timing
from torchdoctor.trials.arm_specs import ArmSpecs
from torchdoctor.trials.log import Budget, Log
from torchdoctor.trials.training_trials import TrainingTrials
from torchdoctor.words import Boundary, LaunchTiming, TrainingTrial

pytestmark = pytest.mark.slow
STEPS = 120

# Least squares over inputs of one deviation: gradient descent diverges above 2 / deviation ** 2.
LEAST_SQUARES = """
import math, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = DEVIATION * torch.randn(1024, 10)
y = x @ torch.full((10, 1), 1.0 / DEVIATION) + 0.1 * torch.randn(1024, 1)
model = torch.nn.Linear(10, 1, bias=False)
optimizer = OPTIMIZER
while True:
    for a, b in DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True):
        loss = 0.5 * (model(a) - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        CHECK
"""
FACTORS = {"lowest_factor": 0.01, "highest_factor": 1e4}
NOT_YET = TrainingTrial(fix="", kind="loss", verdict="not-tried", sentence="")
RANGE = replace(NOT_YET, fix="lr-schedule", kind="range test", settings=FACTORS)


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


def tried(
    folder: Path,
    advice: TrainingTrial,
    deviation: float = 1.0,
    optimizer: str = "torch.optim.SGD(model.parameters(), lr=0.01)",
    check: str = "pass",
) -> TrainingTrial:
    program = LEAST_SQUARES.replace("DEVIATION", str(deviation)).replace("OPTIMIZER", optimizer)
    programs = Programs(program.replace("CHECK", check), folder)
    return _tried(programs, advice)


def _tried(programs: Programs, advice: TrainingTrial) -> TrainingTrial:
    engine: Any = Engine(programs, random.Random(0))  # type: ignore[arg-type]
    specs = ArmSpecs(catalogue.fixes(), recording({}))
    return (
        TrainingTrials(Log(engine, Budget(None)), specs, [advice], steps=STEPS).results().trials[0]
    )


@pytest.mark.parametrize(("deviation", "rate"), [(1.0, 0.01), (4.0, 0.001), (0.25, 0.3)])
def test_the_rate_that_diverges_is_two_over_the_curvature(
    deviation: float, rate: float, tmp_path: Path
) -> None:
    limit = 2 / deviation**2
    found = tried(tmp_path, RANGE, deviation, f"torch.optim.SGD(model.parameters(), lr={rate})")
    assert found.verdict == "found", found.sentence
    test = found.range_test
    assert test is not None and test.diverged_rate is not None and test.max_rate is not None
    assert limit / 4 < test.diverged_rate < 4 * limit
    assert test.own_rate == pytest.approx(rate)
    assert rate < test.max_rate < limit


@pytest.mark.parametrize(
    "check", ["assert not math.isnan(loss.item())", "float(loss) < 1e4 or 1/0"]
)
def test_a_program_that_stops_when_it_diverges_has_shown_the_rate(
    check: str, tmp_path: Path
) -> None:
    found = tried(tmp_path, RANGE, check=check)
    assert found.verdict == "found", found.sentence
    assert found.range_test is not None and found.range_test.diverged_rate is not None
    assert 0.5 < found.range_test.diverged_rate < 20.0


def test_a_rate_that_diverges_already_is_said_to(tmp_path: Path) -> None:
    found = tried(tmp_path, RANGE, optimizer="torch.optim.SGD(model.parameters(), lr=20.0)")
    assert "at that the loss diverges here" in found.sentence, found.sentence


def test_a_program_without_an_optimizer_is_not_tried_and_says_why(tmp_path: Path) -> None:
    by_hand = (
        "type('ByHand', (), {'zero_grad': lambda s: model.zero_grad(), 'step': lambda s: "
        "[p.data.sub_(0.01 * p.grad) for p in model.parameters()]})()"
    )
    program = LEAST_SQUARES.replace("DEVIATION", "1.0").replace("OPTIMIZER", by_hand)
    programs = Programs(program.replace("CHECK", "if step() > 200: break"), tmp_path)
    programs.program = programs.program.replace(
        "import math", "import itertools, math\nstep = itertools.count().__next__"
    ).replace("while True", "for _ in range(15)")
    found = _tried(programs, RANGE)
    assert found.range_test is None
    assert found.verdict in ("not-tried", "failed")
    assert programs.started == ["lr-schedule"], "not a second time"


def test_losses_with_and_without_are_of_the_same_samples(tmp_path: Path) -> None:
    """Inputs of deviation 0.1 learn a hundred times as slowly as normalized ones."""
    settings = {"mean": [0.0] * 10, "std": [0.1] * 10}
    advice = replace(NOT_YET, fix="normalization", settings=settings)
    found = tried(tmp_path, advice, 0.1, "torch.optim.SGD(model.parameters(), lr=0.05)")
    assert found.verdict == "better", found.sentence
    one = found.comparison
    assert one is not None and one.pairs == 3 and one.high is not None
    assert one.with_fix is not None and one.without is not None and one.seeds_spread is not None
    assert one.with_fix < one.without
    assert one.high < 0 < one.seeds_spread
    assert one.step_speedup is not None
    assert "over the same samples (3 seeds" in found.sentence


@pytest.mark.parametrize(
    ("fix", "settings", "optimizer"),
    [
        ("adamw", {}, "torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)"),
        (
            *("gradient-clipping", {"max_norm": 1e3}),
            "torch.optim.SGD(model.parameters(), lr=0.01)",
        ),
    ],
)
def test_what_changes_next_to_nothing_shows_no_difference(
    fix: str, settings: dict[str, Any], optimizer: str, tmp_path: Path
) -> None:
    found = tried(tmp_path, replace(NOT_YET, fix=fix, settings=settings), 1.0, optimizer)
    assert found.verdict == "no-difference", found.sentence
    assert found.launches == 3


def test_clipping_saves_a_training_that_becomes_nan(tmp_path: Path) -> None:
    advice = replace(NOT_YET, fix="gradient-clipping", settings={"max_norm": 0.5})
    found = tried(tmp_path, advice, 1.0, "torch.optim.SGD(model.parameters(), lr=30.0)")
    assert found.verdict == "better", found.sentence
    assert "is not finite without it" in found.sentence
    assert found.details["clipped_steps"] > 0
