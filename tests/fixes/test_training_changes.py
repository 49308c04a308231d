"""What trials of advice on training do to a program: exactly what the edit would, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from probed_examples import Ran, run_with

pytestmark = pytest.mark.slow

BEGIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1, dtype=torch.float64)
rows = torch.randn(64, 4, dtype=torch.float64)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8)
"""
LOOP = """
for (x,) in data:
    optimizer.zero_grad()
    (model(x) - 3.0).square().mean().backward()
    optimizer.step()
print(["%.12f" % v for v in model.weight.flatten().tolist()])
"""
RATES = {"steps": 8, "lowest_factor": 0.01, "highest_factor": 1e4}


def ran(program: str, fix: str | None, folder: Path, settings: dict[str, Any] | None = None) -> Ran:
    found = run_with(program, {fix: settings or {}} if fix else {}, folder)
    assert found.returncode == 0, found.stderr
    assert not found.probe_errors
    return found


def test_adam_with_the_decay_taken_off_is_adamw(tmp_path: Path) -> None:
    arguments = "model.parameters(), lr=0.01, weight_decay=0.3"
    adam, adamw = (
        f"{BEGIN}optimizer = torch.optim.{name}({arguments}){LOOP}" for name in ("Adam", "AdamW")
    )
    changed = ran(adam, "adamw", tmp_path / "changed")
    assert changed.applied["adamw"]["state"] == "applied"
    plain = ran(adam, None, tmp_path / "plain").stdout
    assert changed.stdout == ran(adamw, None, tmp_path / "real").stdout != plain
    untouched = ran(adamw, "adamw", tmp_path / "adamw")
    assert untouched.stdout == changed.stdout, "AdamW stays as it is"
    assert untouched.applied["adamw"]["state"] == "pending"


def test_clipping_is_what_the_line_does(tmp_path: Path) -> None:
    made = f"{BEGIN}optimizer = torch.optim.SGD(model.parameters(), lr=0.01){LOOP}"
    line = "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)\n"
    by_hand = made.replace("    optimizer.step()\n", f"{line}    optimizer.step()\n")
    clipped = ran(made, "gradient-clipping", tmp_path / "fix", {"max_norm": 5.0})
    assert clipped.stdout == ran(by_hand, None, tmp_path / "line").stdout
    noted = clipped.applied["gradient-clipping"]["details"]
    assert noted["steps"] == 8 and 0 < noted["clipped_steps"] <= 8


SCHEDULED = {
    "chained": "torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)",
    "closed": "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))",
    "cycle": "torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)",
    "warm-up": "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: n / 8)",
}


@pytest.mark.parametrize("kind", SCHEDULED)
def test_a_scheduler_and_the_range_test_do_not_see_each_other(kind: str, tmp_path: Path) -> None:
    """A rate left behind would be decayed and raised in turn: neither would be what it says."""
    made = "optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)\n"
    scheduled = LOOP.replace("step()\n", "step(); scheduler.step(); seen.append(rate())\n")
    rate = "rate = lambda: optimizer.param_groups[0]['lr']\nseen = []"
    program = f"{BEGIN}{made}scheduler = {SCHEDULED[kind]}\n{rate}{scheduled}print(seen)"
    plain = ran(program, None, tmp_path / "plain")
    tested = ran(program, "lr-schedule", tmp_path / "tested", RATES)
    assert tested.stdout.splitlines()[-1] == plain.stdout.splitlines()[-1]
    alone = f"{BEGIN}{made}{LOOP}"
    first = 0.1 / 25 if kind == "cycle" else 0.02  # the schedule's own first rate
    alone = alone.replace("lr=0.02", f"lr={first}")
    if kind != "cycle":  # which sets the momentum as well
        without = ran(alone, "lr-schedule", tmp_path / "alone", RATES)
        assert tested.stdout.splitlines()[0] == without.stdout.splitlines()[0]
    noted = tested.applied["lr-schedule"]["details"]
    assert noted["own_rate"] == pytest.approx(first)
    assert noted["updates"] == list(range(8))


GROUPS = f"""{BEGIN}
groups = [{{"params": model.weight, "lr": torch.tensor(0.5)}}, {{"params": model.bias}}]
one = torch.optim.SGD(groups, lr=0.125, foreach=True)
rates = []
one.register_step_pre_hook(lambda o, a, k: rates.append([float(g["lr"]) for g in o.param_groups]))
for number, (x,) in enumerate(data):
    model(x).square().mean().backward()
    if number % 2:
        one.step(); one.zero_grad()
print(type(one.param_groups[0]["lr"]).__name__, [float(g["lr"]) for g in one.param_groups])
print({{round(first / second, 6) for first, second in rates}}, len(rates))
"""


def test_groups_keep_their_proportion_over_micro_batches(tmp_path: Path) -> None:
    found = ran(GROUPS, "lr-schedule", tmp_path, RATES)
    left, proportion = found.stdout.splitlines()
    assert left == "Tensor [0.5, 0.125]", "as the program left them"
    assert proportion == "{4.0} 4"
    noted = found.applied["lr-schedule"]["details"]
    assert noted["own_rate"] == 0.5
    assert noted["updates"] == [0, 0, 1, 1, 2, 2, 3, 3]


SEVERAL = f"""{BEGIN}
other = torch.nn.Linear(4, 1, dtype=torch.float64)
one = torch.optim.SGD(model.parameters(), lr=0.5)
two = torch.optim.Adam(other.parameters(), lr=0.125)
for (x,) in data:
    (model(x) + other(x)).square().mean().backward()
    two.step(); one.step(); one.zero_grad(); two.zero_grad()
print(one.param_groups[0]["lr"], two.param_groups[0]["lr"])
"""


def test_several_optimizers_have_no_range_test(tmp_path: Path) -> None:
    """The rate of the one that stepped first was advice for the one that was made first."""
    found = ran(SEVERAL, "lr-schedule", tmp_path, RATES)
    assert found.stdout == "0.5 0.125", "as the program left them"
    applied = found.applied["lr-schedule"]
    assert (applied["state"], "Several optimizers" in applied["reason"]) == ("refused", True)


@pytest.mark.parametrize(
    ("optimizer", "state", "reason"),
    [
        ("torch.optim.LBFGS(model.parameters())", "refused", "does not follow one"),
        ("torch.optim.SGD(model.parameters(), lr=0.0)", "refused", "rate is 0"),
        ("None", "pending", "No torch optimizer stepped"),
    ],
)
def test_what_follows_no_rate_is_refused(
    optimizer: str, state: str, reason: str, tmp_path: Path
) -> None:
    by_hand = """
for (x,) in data:
    model.zero_grad()
    (model(x) - 3.0).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
"""
    closure = LOOP.replace("optimizer.step()", "optimizer.step(lambda: model(x).sum())")
    loop = by_hand if optimizer == "None" else closure if "LBFGS" in optimizer else LOOP
    found = ran(f"{BEGIN}optimizer = {optimizer}\n{loop}", "lr-schedule", tmp_path, RATES)
    applied = found.applied["lr-schedule"]
    assert applied["state"] == state
    assert reason in applied["reason"]


AVERAGED = f"""{BEGIN}
from torch.optim.swa_utils import AveragedModel
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
averaged = AveragedModel(model, avg_fn=AVERAGE)
{LOOP.replace("step()", "step(); averaged.update_parameters(model)")}
print([round(v, 9) for v in averaged.module.weight.flatten().tolist()])
"""


@pytest.mark.parametrize(
    ("average", "decay"),
    [
        ("lambda a, p, n: 0.9 * a + 0.1 * p", 0.9),
        ("lambda a, p, n: torch.lerp(a, p, 0.25)", 0.75),
        ("lambda a, p, n: a.mul_(0.5).add_(p, alpha=0.5)", 0.5),
        ("lambda a, p, n: a + (p - a) / (n + 1)", None),
        ("lambda a, p, n: min(0.9, float(n) / 10) * a + (1 - min(0.9, float(n) / 10)) * p", None),
        ("lambda a, p, n: a * 0.9 + 0.2 * p", None),
    ],
)
def test_only_a_moving_average_is_taken_for_one(
    average: str, decay: float | None, tmp_path: Path
) -> None:
    program = AVERAGED.replace("AVERAGE", average)
    found = ran(program, "ema-foreach", tmp_path / "fix")
    assert found.stdout == ran(program, None, tmp_path / "plain").stdout
    applied = found.applied["ema-foreach"]
    assert applied["state"] == ("refused" if decay is None else "applied"), applied
    assert applied["details"].get("decay") == decay


def test_inputs_that_the_model_converts_itself_are_left_alone(tmp_path: Path) -> None:
    program = f"{BEGIN}optimizer = torch.optim.SGD(model.parameters(), lr=0.01){LOOP}"
    program = program.replace("torch.randn(64, 4, dtype=torch.float64)", "torch.ones(64, 4).byte()")
    whole = program.replace("model = torch.nn.Linear", "class Converts(torch.nn.Linear):\n"
        "    def forward(self, x):\n        return super().forward(x.double() / 255)\n"
        "model = Converts")  # fmt: skip
    settings = {"mean": [0.5] * 4, "std": [0.5] * 4}
    found = ran(whole, "normalization", tmp_path / "fix", settings)
    assert found.applied["normalization"]["state"] == "refused"
    assert "whole numbers" in found.applied["normalization"]["reason"]
    assert found.stdout == ran(whole, None, tmp_path / "plain").stdout
