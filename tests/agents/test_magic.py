"""`%%torchdoctor` in a real shell of IPython."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent
CELL = """\
%%torchdoctor --no-fixes --budget 1m --quiet
%matplotlib inline
import os, torch, beside
torch._lazy_modules.discard('_inductor')
model = torch.nn.Linear(8, 1)
for _ in range(500 if "-observe" in os.environ["TORCHDOCTOR_PLAN"] else 100000):
    beside.wait()
    loss = (model(torch.randn(4, 8)) - 1).square().mean()
    loss.backward()
    for p in model.parameters():
        p.data.sub_(p.grad, alpha=0.001)
    model.zero_grad()
"""
SHELL = """\
import json, sys
from IPython.terminal.interactiveshell import TerminalInteractiveShell
shell = TerminalInteractiveShell.instance(history_load_length=0)
assert shell.run_cell("%load_ext torchdoctor").success
for cell in json.loads(sys.stdin.read()):
    ran = shell.run_cell(cell)
    report = ran.result
    print("RAN", ran.success, None if report is None else report.diagnosis.bottleneck)
    if report is not None:
        print("HTML", "<iframe" in report._repr_html_(), report.steps.steps)
        print("OF", report.workload.command[1:], report.reproduce[0], report.summary.next)
"""


def shell(folder: Path, *cells: str) -> subprocess.CompletedProcess[str]:
    import json

    return subprocess.run(
        [sys.executable, "-c", SHELL],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / ".ipython")},
        check=False,
        timeout=600,
    )


def test_a_cell_is_measured_and_its_report_shown(tmp_path: Path) -> None:
    """Its imports are those of the notebook's folder, and its magics are dropped with a word."""
    (tmp_path / "beside.py").write_text("import time\ndef wait():\n    time.sleep(0.002)\n")
    done = shell(tmp_path, CELL)
    assert "RAN True" in done.stdout, done.stdout + done.stderr
    assert "HTML True" in done.stdout
    assert "%matplotlib" in done.stderr
    [told] = [line for line in done.stdout.splitlines() if line.startswith("OF ")]
    assert "['In[1]'] %%torchdoctor --budget 60s" in told and "cell-" not in told
    assert list(tmp_path.glob("torchdoctor-runs/*/report.json"))


def test_a_mistake_in_a_cell_is_one_sentence(tmp_path: Path) -> None:
    wrong = ["%%torchdoctor --budget never\npass", "%%torchdoctor\nif:", "%%torchdoctor 'a\npass"]
    done = shell(tmp_path, *wrong, "%%torchdoctor --no-such-option\npass")
    assert done.stdout.count("RAN True None") == 4, done.stdout + done.stderr
    assert done.stderr.count("torchdoctor: ") == 4
    assert "Traceback" not in done.stdout + done.stderr
