"""A model that is made in each request, kept while the program runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed_examples import run_with

from torchdoctor.edits.made_models import made_model

pytestmark = pytest.mark.slow
PROGRAM = """
import torch
made = []
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        made.append(1)
torch.save(Net().state_dict(), "w.pt")
made.clear()

@torch.no_grad()
def answer(x, path):
    model = Net()
    state = torch.load(path)
    model.load_state_dict(state)
    model.eval()
    y = model(x)
    CHANGE
    return float(y.sum())

torch.manual_seed(0)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(20, 4)))
print(sum(answer(x, "w.pt") for (x,) in data))
print("made:", len(made))
"""


def run(
    tmp_path: Path,
    change: str,
    fixed: bool,
    program: str = PROGRAM,
    line: str = "    y = model(x)",
) -> tuple[list[str], dict[str, str]]:
    source = program.replace("CHANGE", change)
    made = made_model(source, source.split("\n").index(line) + 1, "model")
    assert made is not None and not made.in_loop
    settings = {
        "file": "example.py",
        "function": made.function,
        "first": made.first,
        "last": made.last,
        "name": made.name,
        "given": list(made.given),
    }
    ran = run_with(source, {"keep-model": settings} if fixed else {}, tmp_path, seed=1)
    assert ran.returncode == 0 and not ran.probe_errors, ran.stderr
    return ran.stdout.split("\n"), dict(ran.applied.get("keep-model", {}))


def test_statements_of_a_request_make_their_model_once(tmp_path: Path) -> None:
    plain, _ = run(tmp_path / "plain", "pass", fixed=False)
    fixed, fix = run(tmp_path / "fixed", "pass", fixed=True)
    assert fix["state"] == "applied", fix
    assert fixed[0] == plain[0]
    assert (plain[1], fixed[1]) == ("made: 20", "made: 3"), "two more were made to compare"


def test_a_model_with_other_weights_each_time_is_made_anew(tmp_path: Path) -> None:
    """A head that nothing loads is filled with random numbers: each request has its own."""
    change = "pass"
    program = PROGRAM.replace("    model.load_state_dict(state)\n", "")
    plain, _ = run(tmp_path / "plain", change, fixed=False, program=program)
    fixed, fix = run(tmp_path / "fixed", change, fixed=True, program=program)
    assert fix["state"] == "refused" and fix["why"]["fact"] == "another-model-each-time"
    assert fixed[1] == plain[1]


def test_a_model_that_a_request_changes_is_made_anew(tmp_path: Path) -> None:
    change = "[p.mul_(2) for p in model.parameters()]"
    plain, _ = run(tmp_path / "plain", change, fixed=False)
    fixed, fix = run(tmp_path / "fixed", change, fixed=True)
    assert fix["state"] == "refused" and fix["why"]["fact"] == "model-changed-later"
    assert fixed == plain


METHOD = PROGRAM.replace(
    """@torch.no_grad()
def answer(x, path):
""",
    """class Base:
    def answer(self, x, path, *, scale=1.0):
        return scale * float(x.sum())


class Service(Base):
  @torch.no_grad()
  def answer(self, x, path, *, scale=1.0):
    extra = super().answer(x, path, scale=scale)
""",
).replace("return float(y.sum())", "return float(y.sum()) + extra")
METHOD = METHOD.replace("print(sum(answer(", "service = Service()\nprint(sum(service.answer(")
WITHIN_TRY = PROGRAM.replace(
    "    y = model(x)", "    try:\n        y = model(x)\n    finally:\n        x = None"
)


@pytest.mark.parametrize(
    ("program", "line"),
    [(METHOD, "    y = model(x)"), (WITHIN_TRY, "        y = model(x)")],
    ids=["method", "try"],
)
def test_code_of_any_form_of_function_is_replaced(tmp_path: Path, program: str, line: str) -> None:
    """What compiles to cells, defaults and tables of exceptions differs between Pythons."""
    plain, _ = run(tmp_path / "plain", "pass", fixed=False, program=program, line=line)
    fixed, fix = run(tmp_path / "fixed", "pass", fixed=True, program=program, line=line)
    assert fix["state"] == "applied", fix
    assert fixed[0] == plain[0]
    assert (plain[1], fixed[1]) == ("made: 20", "made: 3")
