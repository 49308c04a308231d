"""Fix files in the user's process: their imports of torchdoctor are answered, not made."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed_examples import run_with

from torchdoctor.probe.fixkit.program import execute

PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=2):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print([name for name in sys.modules if name.split(".")[0] == "torchdoctor"])
import torchdoctor
print(callable(torchdoctor.step))
"""


@pytest.mark.slow
def test_a_fix_brings_nothing_of_torchdoctor_into_the_program(tmp_path: Path) -> None:
    fixes = {"loader-workers": {"num_workers": 1}, "gc-freeze": {}, "set-to-none": {}}
    ran = run_with(PROGRAM, fixes, tmp_path)
    assert ran.stdout.splitlines() == ["[]", "True"], ran.stderr
    assert ran.applied["loader-workers"]["state"] == "applied"
    assert not ran.probe_errors


FILE = """
from torchdoctor.schema.specs import FixSpec
from torchdoctor.queries import lookup as facts
import torchdoctor.edits.calls
import json

SHARES = [*facts.SHARES, 1.0]
FIX = FixSpec(settings=facts.lookup, edits=torchdoctor.edits.calls.loader_edits)

def apply(torch, settings, program):
    import textwrap
    from torchdoctor.schema import Recording
    return textwrap.dedent(" a"), json.loads("1"), Recording.anything()
"""


def test_other_imports_of_a_fix_are_real_and_torchdoctors_do_nothing(tmp_path: Path) -> None:
    (tmp_path / "fix.py").write_text(FILE)
    fix = execute(str(tmp_path / "fix.py"), "a_fix")
    text, number, inert = fix.apply(None, {}, None)
    assert (text, number, fix.SHARES) == ("a", 1, [1.0])
    assert inert is fix.FIX
