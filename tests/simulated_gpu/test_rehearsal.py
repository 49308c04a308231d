"""A day with a GPU, in short, on the simulated one, on a machine as it will be.

Its python3 is a virtual environment of its own, with torch and without a package index; it lacks
some of what torchdoctor needs, which comes as wheels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from simulated_gpu import devices

SCRIPT = devices.TESTS.parent / "benchmarks" / "gpu" / "day.sh"
LACKING = ("msgspec", "isal", "libcst")


def machine(folder: Path) -> Path:
    """Return the python3 of a machine with all that we have but these packages and torchdoctor."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python3"
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.removeprefix("_").startswith((*LACKING, "torchdoctor", "_virtualenv")):
            (site / path.name).symlink_to(path)
    return python


def make_wheel(name: str, folder: Path) -> None:
    """Pack an installed distribution, as a package index would have handed it out."""
    installed = distribution(name)
    [tag] = [line for line in (installed.read_text("WHEEL") or "").splitlines() if "Tag:" in line][
        :1
    ]
    version, tag = installed.version, tag.removeprefix("Tag: ")
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        for file in installed.files or []:
            if not file.as_posix().startswith("..") and file.suffix != ".pyc":
                wheel.write(installed.locate_file(file), file.as_posix())


def day(part: str, out: Path, wheels: Path, python: Path) -> str:
    """Return what one part says."""
    short = {"SIMULATED": "1", "SHORT": "1", "LIMIT_S": "600", "PYTHON": str(python)}
    short |= {"SAMPLES": "gpu_copies_and_syncs", "HEADLINES": "multiples-of-8"}
    # It ends as soon as it knows enough. Threads that wait for each other would burn both cores.
    short |= {"BUDGET_S": "60", "OMP_NUM_THREADS": "1"}
    short |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    (out.parent / "nvml").write_text("devices=1\n", encoding="utf-8")
    nvml = {"SIMULATED_NVML": str(out.parent / "nvml"), "LD_LIBRARY_PATH": devices.nvml_folder()}
    ended = subprocess.run(
        ["bash", str(SCRIPT), part, str(out), str(wheels)],
        env={**os.environ, **devices.environment(), **short, **nvml},
        cwd=out.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=700,
    )
    log = ended.stdout + ended.stderr
    assert ended.returncode == 0, log
    assert "skipped or failed" not in log, log[-3000:]
    return log


@pytest.mark.slow
def test_all_that_a_lent_gpu_is_for_works_at_the_first_call(tmp_path: Path) -> None:
    python, wheels = machine(tmp_path / "venv"), tmp_path / "wheels"
    wheels.mkdir()
    for name in LACKING:
        make_wheel(name, wheels)
    lacks = subprocess.run([python, "-c", "import msgspec"], capture_output=True, check=False)
    assert lacks.returncode != 0, "the machine lacks nothing, so that this shows nothing"

    day("start", tmp_path / "start", wheels, python)
    figures = json.loads((tmp_path / "start" / "nvml.json").read_text(encoding="utf-8"))
    assert figures["ours, nvidia-smi"]["power_w"][0] > 0

    day("samples 1", tmp_path / "samples", wheels, python)
    with tarfile.open(tmp_path / "samples" / "results.tar.gz") as results:
        names = results.getnames()
    assert "samples/gpu_copies_and_syncs/report.json" in names
    assert "traces/gpu_copies_and_syncs.json.gz" in names

    day("headlines 1", tmp_path / "headlines", wheels, python)
    [claim] = json.loads((tmp_path / "headlines" / "headlines.json").read_text(encoding="utf-8"))
    assert claim["said"]
