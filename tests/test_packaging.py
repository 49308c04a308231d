"""The wheel and the sdist install into an empty environment and run there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import torchdoctor

pytest.importorskip("build")
pytest.importorskip("hatchling")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]
ROOT = Path(__file__).parent.parent


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), cwd=ROOT)
    return folder


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_is_built_installs_and_explains(kind: str, built: Path, tmp_path: Path) -> None:
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
