"""Whole runs through the front door, of programs that are started or behave in unusual ways."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from left_behind import left_in
from light_torch import LIGHT, STARTS_LATE

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
STEP = """
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STEP_BY_HAND = """
    loss = (model(x) - 1).square().mean()
    loss.backward()
    for p in model.parameters():
        p.data.sub_(p.grad, alpha=0.001)
    model.zero_grad()
"""
# Where its budget is minutes, observing goes on for 15 s: a program ends that launch by itself.
STEPS = 'range(500 if "-observe" in os.environ["TORCHDOCTOR_PLAN"] else 100000)'
LOOP = f"""
import os, time, torch
{LIGHT}
model = torch.nn.Linear(8, 1)
for _ in {STEPS}:
    x = torch.randn(4, 8)
    time.sleep(0.002)
{STEP_BY_HAND}
"""


def run(folder: Path, *arguments: str, before=(), **more) -> subprocess.CompletedProcess:
    command = [*before, sys.executable, "-m", "torchdoctor.cli.front", "run", "--quiet", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        timeout=600,
        **({"stdin": subprocess.DEVNULL} | more),
    )


def report_of(folder: Path) -> dict:
    return json.loads((folder / "out" / "report.json").read_text())


DIAGNOSE = ("--no-fixes", "--budget", "5m", "--output", "out")


def test_torchrun_with_a_rank_that_others_wait_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"import os, time, torch, torch.distributed as dist\n{LIGHT}"
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "def prepare(i):\n"
        "    time.sleep(0.002 + 0.05 * dist.get_rank())\n"
        "    return torch.randn(4, 8)\n"
        f"for x in map(prepare, {STEPS}):\n" + STEP
    )
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29517"]
    words = ("run", "--quiet", *DIAGNOSE, "--", sys.executable, *torchrun, "train.py")
    result = commands.torchdoctor(*words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = report_of(tmp_path)
    assert report["steps"]["trainers"] == 2
    told = report["diagnosis"]["sentence"]
    latest = report["diagnosis"]["verdict"]["latest"]
    assert (latest["rank"], latest["waiting_rank"]) == (1, 0), told
    assert latest["last_share"] == pytest.approx(1.0, abs=0.005)
    # What is said of the program is said of the rank that sleeps, and not of the one that waits.
    shares = report["baseline"]["shares"]
    assert shares["data_loader"] > shares["communication"], told
    assert left_in(tmp_path) == []


def test_kept_graphs_and_copied_arrays_are_named_and_offered_as_edits(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"import numpy as np\nimport os, torch\n{LIGHT}"
        "model = torch.nn.Linear(64, 1)\n"
        "rows = [np.ones(64, dtype=np.float32) for _ in range(64)]\n"
        "total = 0.0\n"
        f"for _ in {STEPS}:\n    x = torch.tensor(rows)\n{STEP_BY_HAND}    total += loss\n"
    )
    words = ("--no-fixes", "--budget", "5m", "--output", "out", "train.py")
    result = commands.torchdoctor("run", "--quiet", *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = report_of(tmp_path)
    found = {one["check"]: one for one in report["diagnosis"]["findings"]}
    assert found["copied-arrays"]["location"]["line"] == 8
    assert "total" in found["kept-graphs"]["evidence"][0]["sentence"]
    offered = {one["fix"]: one for one in report["recommendation"]["also_offered"]}
    assert "+    x = torch.as_tensor(np.array(rows))" in offered["as-tensor"]["edit"]
    assert "+    total += loss.detach()" in offered["release-graph"]["edit"]
    assert all(one["aim"] == "speed" for one in offered.values()), "advice was not asked for"


@pytest.mark.smoke
def test_a_package_that_is_run_as_a_module_reads_in_every_launch_what_is_piped_in(
    tmp_path: Path,
) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "data.py").write_text("import torch\ndef batch():\n    return torch.randn(4, 8)\n")
    (package / "__main__.py").write_text(
        f"import os, sys, time, torch\n{LIGHT}from .data import batch\n"
        "assert sys.argv[1:] == ['--lr', '0.1']\n"
        "lines = sys.stdin.read().split()\nassert len(lines) == 3, lines\n"
        "model = torch.nn.Linear(8, 1)\n"
        f"for _ in {STEPS}:\n    x = batch()\n    time.sleep(0.002)\n{STEP_BY_HAND}"
    )
    words = ("--budget", "5m", "--no-fixes", "--output", "out", "--", sys.executable)
    words = (*words, "-m", "trainer", "--lr", "0.1")
    result = run(tmp_path, *words, input="a\nb\nc\n", stdin=None)
    assert result.returncode == 0, result.stderr
    assert report_of(tmp_path)["steps"]["steps"] >= 40
    outputs = [path.read_text() for path in tmp_path.glob("out/launches/*/output.txt")]
    assert len(outputs) > 1 and not any("AssertionError" in text for text in outputs)
    assert report_of(tmp_path)["trace"]["steps"] > 0


def test_a_program_that_writes_and_will_not_be_stopped_is_stopped_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    """It ignores every signal, and has trackers and writers of its own."""
    (tmp_path / "train.py").write_text(
        f"import csv, signal, sqlite3, time, torch\n{LIGHT}{STARTS_LATE}"
        "from torch.utils.tensorboard import SummaryWriter\n"
        "for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(name, signal.SIG_IGN)\n"
        "writer = SummaryWriter('runs/one')\n"
        "table = sqlite3.connect('log.sqlite')\n"
        "table.execute('create table if not exists losses (step, loss)')\n"
        "model = torch.nn.Linear(8, 1)\n"
        "step = 0\n"
        "while True:\n  try:\n    x = torch.randn(4, 8)\n    time.sleep(0.02)\n"
        + STEP_BY_HAND
        + "    step += 1\n    writer.add_scalar('loss', loss.item(), step)\n"
        "    table.execute('insert into losses values (?, ?)', (step, loss.item()))\n"
        "    table.commit()\n"
        "    if step % 10 == 0:\n        torch.save(model.state_dict(), 'last.pt')\n"
        "        assert torch.load('last.pt')['bias'].shape == (1,)\n"
        "  except (AssertionError, OSError, RuntimeError, sqlite3.Error):\n    raise\n"
        "  except BaseException:\n    pass\n"
    )
    options = ("--no-fixes", "--budget", "60s", "--output", "out")
    result = commands.torchdoctor("run", "--quiet", *options, "train.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert report_of(tmp_path)["steps"]["steps"] >= 40
    assert left_in(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "train.py"]


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare for a small disk")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "small").mkdir()
    shell = ["unshare", "-Urm", "sh", "-c"]
    mount = 'mount -t tmpfs -o size=64k none small && exec "$@"'
    if subprocess.run([*shell, mount, "sh", "true"], cwd=tmp_path, check=False).returncode:
        pytest.skip("no user namespaces here")
    options = ("--budget", "5m", "--no-fixes", "--output", "small/out")
    result = run(tmp_path, *options, "train.py", before=[*shell, mount, "sh"])
    assert "Traceback" not in result.stderr
    assert result.returncode == 2, "the report is kept nowhere"
    assert "No space left" in " ".join(result.stderr.split())
    assert "--output" in result.stderr


def test_a_report_that_cannot_be_stored_is_printed_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    before = ["sh", "-c", '(until mkdir out/report.json; do sleep 0.1; done) 2>&- >&- & exec "$@"']
    options = ("--budget", "60s", "--no-fixes", "--output", "out", "--format", "json")
    result = run(tmp_path, *options, "train.py", before=[*before, "sh"])
    assert result.returncode == 2, result.stderr
    remarks = {remark["fact"]: remark["values"] for remark in json.loads(result.stdout)["remarks"]}
    assert remarks["report-unwritten"]["path"] == str(tmp_path / "out" / "report.json")


SECRETIVE = f"""
import argparse, time, torch
{LIGHT}parser = argparse.ArgumentParser()
parser.add_argument("--hf-token")
parser.add_argument("--key")
given = parser.parse_args()
assert given.hf_token == "hf_geheimnis42" and given.key == "k9"
print(given, flush=True)
{STARTS_LATE}model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100000):
    time.sleep(0.005)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_token_on_the_command_line_is_stored_and_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SECRETIVE)
    words = ["--quiet", "--no-fixes", "--budget", "60s", "--output", "out", "train.py"]
    secrets = ["--hf-token", "hf_geheimnis42", "--key=k9"]
    result = commands.torchdoctor("run", *words, *secrets, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    command = json.loads((tmp_path / "out" / "report.json").read_text())["workload"]["command"]
    assert command[-3:] == ["--hf-token", "***", "--key=***"]
    for text in (result.stdout, result.stderr):
        assert "geheimnis" not in text
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    holding = [path for path in files if b"geheimnis" in path.read_bytes()]
    assert files and holding == []


def test_a_notebook_is_measured_and_its_places_are_cells(tmp_path: Path) -> None:
    sources = (
        "%matplotlib inline\nimport time, torch",
        f"{LIGHT}model = torch.nn.Linear(8, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "def slow(n):\n    t = time.perf_counter()\n"
        "    while time.perf_counter() - t < 0.02: n += 1\n"
        "for step in range(60):\n    model(torch.ones(2, 8)).sum().backward()\n"
        "    optimizer.step()\n    slow(step)",
    )
    cells = [{"cell_type": "code", "source": source} for source in sources]
    (tmp_path / "train.ipynb").write_text(json.dumps({"nbformat": 4, "cells": cells}))
    options = ["--no-fixes", "--budget", "60s", "--output", "out", "--step-on", "optimizer"]
    result = commands.torchdoctor("run", "--quiet", *options, "train.ipynb", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = report_of(tmp_path)
    assert report["workload"]["command"][1] == "train.ipynb"
    [finding, *_] = [x for x in report["diagnosis"]["findings"] if x["location"]]
    assert finding["location"]["file"].endswith("train.ipynb#cell2")
    assert any("train.ipynb" in doubt for doubt in report["doubts"])
    assert (tmp_path / "train.ipynb").exists()
