"""The wheel and the sdist install into an empty environment and run there."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from synthetic_traces import every_branch

import torchdoctor

pytest.importorskip("build")
pytest.importorskip("hatchling")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]
ROOT = Path(__file__).parent.parent
PROGRAM = """
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3000):
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


@pytest.fixture(scope="module")
def alone(built: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """An environment with the wheel and what it requires: as `pip install` makes it, offline."""
    folder = tmp_path_factory.mktemp("alone")
    [wheel] = built.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "env" / "bin" / "python")]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel), cwd=folder)
    [packages] = (folder / "env").glob("lib/python*/site-packages")
    return folder, _lend(packages)


def test_torch_and_other_large_packages_are_not_required(alone: tuple[Path, set[str]]) -> None:
    assert not alone[1] & {"torch", "scipy", "tensorboard", "pandas", "pyarrow", "grpcio"}


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


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_commands_work_without_torch(
    arguments: list[str], alone: tuple[Path, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = alone
    (folder / "trace.json").write_bytes(every_branch().text())
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = str(folder / "env" / "bin" / "torchdoctor")
    printed = json.loads(run(command, *arguments, "--format", "json", cwd=folder))
    assert next(iter(printed)) == "summary" and printed["summary"]["sentence"]
    assert run(command, *arguments, "--format", "markdown", cwd=folder)
    assert run(command, *arguments, cwd=folder)


def test_a_program_runs_with_the_python_that_has_torch(
    alone: tuple[Path, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = alone
    (folder / "train.py").write_text(PROGRAM)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = str(folder / "env" / "bin" / "torchdoctor")
    options = ["--no-fixes", "--budget", "60s", "--format", "json"]
    printed = json.loads(run(command, "run", *options, sys.executable, "train.py", cwd=folder))
    assert printed["workload"]["python"] == sys.executable
    assert printed["workload"]["python_from"] == "the command"
    assert printed["steps"]["steps"] > 0


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_is_built_installs_and_explains(
    kind: str, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    [archive] = built.glob(kind)
    if kind == "*.tar.gz":  # hatchling stands here, not in the fresh environment
        wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation"]
        run(*wheel, "--no-deps", "--no-index", str(archive), cwd=tmp_path)
        [archive] = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", "fresh", cwd=tmp_path)
    python = tmp_path / "fresh" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", str(archive), cwd=tmp_path)
    [packages] = (tmp_path / "fresh").glob("lib/python*/site-packages")
    # What torchdoctor requires is borrowed: torch alone has hundreds of megabytes.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = str(tmp_path / "fresh" / "bin" / "torchdoctor")
    assert run(command, "--version", cwd=tmp_path).strip().endswith(torchdoctor.__version__)
    assert "num_workers" in run(command, "explain", "loader-workers", cwd=tmp_path)
    where = "import torchdoctor; print(torchdoctor.__file__)"
    assert run(str(python), "-c", where, cwd=tmp_path).startswith(str(packages))
    assert (packages / "torchdoctor" / "py.typed").is_file()
    page = packages / "torchdoctor" / "reports" / "page"
    assert {"page.js", "page.css", "uPlot.iife.min.js", "uPlot.LICENSE"} <= {
        x.name for x in page.iterdir()
    }
