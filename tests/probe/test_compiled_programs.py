"""Programs that torch.compile works on: dynamo's own counters do not tell that a probe is there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from probed import Probed, run_plain, run_probed

from torchdoctor.probe import step_log
from torchdoctor.probe.hooks import compile_log

pytestmark = pytest.mark.slow

# The optimizer, clipping, indexing and casts are what the probe has wrappers of.
PROGRAM = """
import json, sys, torch
from torch.utils.data import DataLoader, TensorDataset

compiled = lambda function: torch.compile(function, backend="eager", dynamic=False)
torch.manual_seed(0)

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.layer(x.to(torch.float32)))

net = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
what, called, update = sys.argv[1], net, optimizer.step

def train(x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(called(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    update()

if what == "model":
    called = compiled(net)
elif what == "optimizer":
    update = compiled(optimizer.step)
else:
    train = compiled(train)
data = TensorDataset(torch.randn(96, 8), torch.randint(0, 2, (96,)))
for x, y in DataLoader(data, batch_size=8):
    train(x, y)

from torch._dynamo.utils import counters, guard_failures
print(json.dumps({
    "frames": counters["frames"],
    "stats": counters["stats"],
    "breaks": sum(counters["graph_break"].values()),
    "again": [[code.co_filename, code.co_name, len(why)] for code, why in guard_failures.items()],
}))
"""
TIMED: dict[str, Any] = {"purpose": "time", "phases": False, "measure_steps": 1000}
LAUNCHES: dict[str, dict[str, Any]] = {
    "observed": {"sample_stacks": True},
    "timed by the loader": {**TIMED, "boundary": {"kind": "loader", "ident": 0, "every": 1}},
    "timed by the optimizer": {**TIMED, "boundary": {"kind": "optimizer", "ident": 0, "every": 1}},
    "watched": {"watch": {}},
}


def _counted(ran: Probed) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    assert "torchdoctor" not in ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", ["model", "step", "optimizer"])
def test_a_compiled_program_has_the_same_frames_breaks_and_versions_under_the_probe(
    tmp_path: Path, what: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    plain = _counted(run_plain([str(script), what], tmp_path, forked=True))
    assert plain["frames"]["ok"] >= 1
    for name, plan in LAUNCHES.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        ran = run_probed(
            [str(script), what], cwd=folder, folder=folder, after="continue", forked=True, **plan
        )
        assert _counted(ran) == plain, name
        assert ran.said() == []
        if name == "watched":
            continue
        if plan.get("phases", True):
            assert ran.count(step_log.OPTIMIZER_BEGIN) == 12, "also where the step is compiled"
            assert ran.count(step_log.BACKWARD_END) == 12
            assert ran.main["optimizers"][0]["steps"] == 12
        else:
            assert ran.count(step_log.BOUNDARY) >= 11, name


def test_what_is_compiled_of_files_of_ours_is_not_the_programs(tmp_path: Path) -> None:
    """A torch whose frames cannot be marked may compile the probe: nobody can mend that."""
    ours, theirs = compile_log.__file__, str(tmp_path / "train.py")

    def metrics(file: str, cache_size: int) -> SimpleNamespace:
        return SimpleNamespace(
            compile_id=f"{file}/{cache_size}",
            co_filename=file,
            co_name="step",
            co_firstlineno=1,
            cache_size=cache_size,
            graph_op_count=3,
            entire_frame_compile_time_s=2.0,
            start_time=10.0,
        )

    def broken(file: str, *below: str) -> SimpleNamespace:
        stack = [SimpleNamespace(filename=name, lineno=5) for name in (file, *below)]
        return SimpleNamespace(reason="a print", user_stack=stack)

    code = compile_log._first_line.__code__
    other = code.replace(co_filename=theirs, co_name="step")
    utils = SimpleNamespace(
        counters={"graph_break": {"a print": 2}, "stats": {"unique_graphs": 4}},
        graph_break_reasons=[broken(ours), broken(theirs, ours)],
        guard_failures={code: ["0/0: size"], other: ["0/0: size"]},
        get_compilation_metrics=lambda: [metrics(f, n) for f in (ours, theirs) for n in (0, 1)],
        calculate_time_spent=lambda: {"total_wall_time": 8.0},
    )
    torch = SimpleNamespace(__file__="/v/torch/x.py", _dynamo=SimpleNamespace(utils=utils))
    log = compile_log.CompileLog(torch)
    for file in (ours, theirs):
        message = f"torch._dynamo hit config.recompile_limit (8)\n   function: 'step' ({file}:1)\n"
        log.emit(SimpleNamespace(getMessage=lambda m=message: m + "   last reason: 0/0: size"))
    details = log.details()
    assert (details["graphs"], details["graph_breaks"], details["compile_s"]) == (2, 1, 4.0)
    assert details["breaks"] == [{"reason": "a print", "file": theirs, "line": 5, "count": 1}]
    assert details["recompiles"] == 1 and log.later(0.0)["later_recompiles"] == 1
    assert [row["file"] for row in details["recompile_reasons"]] == [theirs]
    assert [row["function"] for row in details["gave_up"]] == [f"'step' ({theirs}:1)"]
