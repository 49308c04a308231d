"""The wheel and the sdist install into an empty environment and run there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from light_torch import LIGHT, STARTS_LATE
from packaging.requirements import Requirement
from synthetic_traces import every_branch

import torchdoctor

pytest.importorskip("build")
pytest.importorskip("hatchling")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]
ROOT = Path(__file__).parent.parent
PROGRAM = f"""
import time, torch
{LIGHT}{STARTS_LATE}
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100000):
    time.sleep(0.005)
    optimizer.zero_grad()
    model(torch.randn(64, 64)).square().mean().backward()
    optimizer.step()
"""


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), cwd=ROOT)
    return folder


def test_the_index_would_take_it(built: Path) -> None:
    pytest.importorskip("twine")
    files = [str(path) for path in built.iterdir()]
    run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=ROOT)


def _required(distribution: metadata.Distribution) -> Iterator[str]:
    for text in distribution.requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _lend(packages: Path) -> set[str]:
    """Link what an installed torchdoctor requires, and nothing else; return the names."""
    [own] = metadata.distributions(name="torchdoctor", path=[str(packages)])
    waiting, lent = list(_required(own)), set()
    while waiting:
        name = waiting.pop()
        if name.lower() in lent:
            continue
        lent.add(name.lower())
        distribution = metadata.distribution(name)
        waiting += _required(distribution)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            source, link = Path(str(distribution.locate_file(top))), packages / top
            if source.exists() and not link.exists():
                link.symlink_to(source)
    return lent


@dataclass(frozen=True)
class Installed:
    """An environment with torchdoctor: its folder, its packages, the names of what was lent."""

    folder: Path
    packages: Path
    lent: set[str]

    def program(self, name: str) -> str:
        """The path of one of its programs."""
        return str(self.folder / "env" / "bin" / name)


@pytest.fixture(scope="module")
def alone(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel and what it requires: as `pip install` makes it, offline.

    The wheel was built from the sdist, which `build` makes first.
    """
    folder = tmp_path_factory.mktemp("alone")
    [wheel] = built.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "env" / "bin" / "python")]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel), cwd=folder)
    [packages] = (folder / "env").glob("lib/python*/site-packages")
    return Installed(folder, packages, _lend(packages))


def test_torch_and_other_large_packages_are_not_required(alone: Installed) -> None:
    assert not alone.lent & {"torch", "scipy", "tensorboard", "pandas", "pyarrow", "grpcio"}


REPORT = ROOT / "docs" / "report.example.json"
READING = [
    ["diagnose", "trace.json"],
    ["report", str(REPORT)],
    ["explain", "loader-workers"],
    ["explain", "--all"],
    ["compare", str(REPORT), str(REPORT)],
    ["patch", str(REPORT)],
    ["env"],
]
# What is imported stays imported, so that the first command that lacks a package tells.
COMMANDS = """
import io, json, sys
from torchdoctor.cli import front

def printed(*arguments):
    sys.argv, sys.stdout = ["torchdoctor", *arguments], io.TextIOWrapper(io.BytesIO(), "utf-8")
    try:
        front.main()
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
    sys.stdout.flush()
    return sys.stdout.buffer.getvalue().decode()

for arguments in json.loads(sys.argv[1]):
    summary = json.loads(printed(*arguments, "--format", "json"))
    assert next(iter(summary)) == "summary" and summary["summary"]["sentence"], arguments
    assert printed(*arguments, "--format", "markdown"), arguments
    assert printed(*arguments), arguments
assert "torch" not in sys.modules
"""


def test_commands_work_without_torch(alone: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone.folder / "trace.json").write_bytes(every_branch().text())
    monkeypatch.delenv("PYTHONPATH", raising=False)
    run(alone.program("python"), "-c", COMMANDS, json.dumps(READING), cwd=alone.folder)


def test_a_program_runs_with_the_python_that_has_torch(
    alone: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alone.folder / "train.py").write_text(PROGRAM)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    words = [alone.program("torchdoctor"), "run", "--no-fixes", "--budget", "60s"]
    words += ["--format", "json", sys.executable, "train.py"]
    printed = json.loads(run(*words, cwd=alone.folder))
    assert printed["workload"]["python"] == sys.executable
    assert printed["workload"]["python_from"] == "the command"
    assert printed["steps"]["steps"] > 0


def test_what_is_built_installs_and_explains(
    built: Path, alone: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert sorted(path.suffix for path in built.iterdir()) == [".gz", ".whl"]
    command = alone.program("torchdoctor")
    version = run(command, "--version", cwd=alone.folder)
    assert version.strip().endswith(torchdoctor.__version__)
    assert "num_workers" in run(command, "explain", "loader-workers", cwd=alone.folder)
    where = "import torchdoctor; print(torchdoctor.__file__)"
    found = run(alone.program("python"), "-c", where, cwd=alone.folder)
    assert found.startswith(str(alone.packages))
    assert (alone.packages / "torchdoctor" / "py.typed").is_file()
    page = alone.packages / "torchdoctor" / "reports" / "page"
    assert {"page.js", "page.css", "uPlot.iife.min.js", "uPlot.LICENSE"} <= {
        x.name for x in page.iterdir()
    }
