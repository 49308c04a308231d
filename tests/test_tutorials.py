"""The tutorials' commands, each run on its page's own program, in little time."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from light_torch import LIGHT
from synthetic_traces import every_branch

from torchdoctor.edits import StatementEdit
from torchdoctor.edits.diff import unified_diff
from torchdoctor.launch.run_folder import RUNS
from torchdoctor.schema import (
    Diagnosis,
    Environment,
    Recommendation,
    RecommendedFix,
    Report,
    WorkloadRecord,
)
from torchdoctor.schema.record_files import write_record

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
_PROGRAM = re.compile(r'```python title="(\w+\.py)"\n(.*?)```', re.DOTALL)
_BUDGETS = {"run": "7s", "gate": "5s"}
# Of a page's program: enough to be looked at.
_STEPS = re.compile(r"(for step in range\(|\"--steps\", type=int, default=)\d+(?=\))")
_EPOCHS = re.compile(r"(for epoch in range\()\d+(?=\))")
_IMPORT = re.compile(r"^import torch\n", re.MULTILINE)
_STARTS_A_PROGRAM = ("run", "gate", "watch")
# 5, 6: a slow machine does not get far in it. What a result should say, other tests look at.
_EXPECTED = (0, 5, 6)


def _commands(page: Path) -> list[list[str]]:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [shlex.split(line) for line in lines]


def _small(words: list[str]) -> list[str]:
    """Return a command that takes little time: what it measures is not looked at."""
    words = list(words)
    if words[1] in _BUDGETS:
        budget = _BUDGETS[words[1]]
        if "--budget" in words:
            words[words.index("--budget") + 1] = budget
        else:
            words[2:2] = ["--budget", budget]
    return words


def _shortened(source: str, compiles: bool) -> str:
    source = _EPOCHS.sub(r"\g<1>4", _STEPS.sub(r"\g<1>100", source))
    return source if compiles else _IMPORT.sub(lambda line: line[0] + LIGHT, source, count=1)


def _place(page: Path, folder: Path) -> None:
    """Write the page's program, and what its commands name, into a repository of their own.

    They are the programs of the page but for their number of steps, and what torch imports.
    """
    text = page.read_text(encoding="utf-8")
    for name, source in _PROGRAM.findall(text):
        (folder / name).write_text(source)
    shutil.copytree(ROOT / "sample_workloads", folder / "sample_workloads")
    if not (folder / "train.py").exists():
        shutil.copy(ROOT / "sample_workloads" / "single_tensor_optimizer.py", folder / "train.py")
    for program in folder.rglob("*.py"):
        source = program.read_text(encoding="utf-8")
        program.write_text(_shortened(source, "torch-compile" in text), encoding="utf-8")
    (folder / "ranks").mkdir()
    for rank in range(2):
        (folder / "ranks" / f"rank{rank}.json").write_bytes(every_branch().text())
    (folder / ".gitignore").write_text("torchdoctor-runs/\n")
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        own = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        subprocess.run(["git", *own, *arguments], cwd=folder, check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_one_of_ours_or_of_pip(page: Path) -> None:
    assert _commands(page)
    assert {words[0] for words in _commands(page)} <= {"torchdoctor", "pip"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    _place(page, tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    home = {"HOME": str(tmp_path / "home"), "SHELL": "/bin/bash", "PYTHONPATH": str(ROOT)}
    (tmp_path / "home").mkdir()
    environment = {**os.environ, **home, "PATH": path}
    for words in _commands(page):
        if words[0] != "torchdoctor" or words[1] == "--install-completion":
            continue  # installing is tested with the wheel, completion with a shell of its own
        if "torchrun" in words and shutil.which("torchrun", path=path) is None:
            pytest.skip("no torchrun beside this Python")
        if words[1] not in _STARTS_A_PROGRAM:
            has_report = any(tmp_path.glob(f"{RUNS}/*/report.json"))
            if words[1:] == ["patch"] or (words[1] == "report" and not has_report):
                _keep_a_patch(page, tmp_path)
            ran = commands.torchdoctor(*words[1:], cwd=tmp_path)
            assert ran.returncode == 0, f"{shlex.join(words)}\n{ran.stdout}\n{ran.stderr}"
            continue
        command = [sys.executable, "-m", "torchdoctor", *_small(words)[1:]]
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode in _EXPECTED, f"{shlex.join(words)}\n{ran.stdout}\n{ran.stderr}"


def _keep_a_patch(page: Path, folder: Path) -> None:
    """Make the newest run one that recommends a change of the page's program.

    In so little time a run on a slow machine recommends none.
    """
    [name, *_] = [word for words in _commands(page) for word in words if word.endswith(".py")]
    edit = StatementEdit(file=str(folder / name), statement="torch.set_num_threads(1)")
    report = Report(
        workload=WorkloadRecord(command=[name], cwd=str(folder)),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="cpu"),
        recommendation=Recommendation(
            fixes=[RecommendedFix(fix="cpu-threads")],
            patch=unified_diff([edit], folder),
            patch_folder=str(folder),
            patch_fixes=["cpu-threads"],
        ),
    )
    run = folder / RUNS / "patched"
    run.mkdir(parents=True, exist_ok=True)
    write_record(report, run / "report.json")
