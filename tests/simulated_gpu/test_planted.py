"""Planted illnesses, through `torchdoctor run` on the simulated device: the cause, the place, and
what must not be said. All of them are in planted.py; these few run always."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulated_gpu import devices
from simulated_gpu.planted import PLANTED

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["gpu-bound", "a-value-read-in-each-step", "tensors-made-on-the-host"]
)
def test_an_illness_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    planted = PLANTED[name]
    (tmp_path / "train.py").write_text(planted.program, encoding="utf-8")
    arguments = ["run", "--no-fixes", "--budget", "2m", "--json", "report.json", "train.py"]
    ended = devices.doctor(tmp_path, *arguments, settings=planted.settings, nvml=planted.nvml)
    assert ended.returncode == 0, ended.stderr[-2000:]
    diagnosis = json.loads((tmp_path / "report.json").read_text())["diagnosis"]
    findings = {finding["check"]: finding for finding in reversed(diagnosis["findings"])}
    assert diagnosis["bottleneck"] in planted.bottleneck
    assert planted.finding in findings
    assert not set(planted.not_found) & findings.keys()
    assert planted.says in str([finding["evidence"] for finding in findings.values()])
    if planted.line:
        line = findings[planted.finding]["location"]["line"]
        assert planted.line in planted.program.splitlines()[line - 1]
