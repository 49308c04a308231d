"""`torchdoctor gate --baseline` with real launches: what a stored report decides, and what not."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchdoctor.gate.settings import GateSettings
from torchdoctor.gate.stored import gate_against_report, not_comparable, read_stored
from torchdoctor.machine.environment import environment
from torchdoctor.schema import (
    Baseline,
    Boundary,
    Diagnosis,
    Environment,
    Report,
    StepStatistics,
    StepTime,
    Workload,
    WorkloadRecord,
)
from torchdoctor.schema.errors import Inconclusive
from torchdoctor.schema.record_files import write_record

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.slow


def stored(
    tmp_path: Path,
    steps_s: list[float],
    memory: int,
    samples: float | None = None,
    **environment: Any,
) -> Path:
    """A report of the program of `project`, whose step takes about 10 ms and has no known size."""
    step_s = steps_s[0]
    report = Report(
        workload=WorkloadRecord(command=["python", "train.py"]),
        environment=Environment(**environment),
        baseline=Baseline(
            step_time_s=StepTime(median=step_s, p10=step_s, p90=step_s, steps=30),
            launches_s=steps_s,
            peak_memory_bytes=memory,
            measured="side by side",
        ),
        steps=StepStatistics(
            boundary=Boundary(kind="optimizer", ident=0, every=1),
            steps=30,
            warmup_steps=0,
            median_s=step_s,
            mean_s=step_s,
            p10_s=step_s,
            p90_s=step_s,
            samples_per_step=samples,
        ),
        diagnosis=Diagnosis(bottleneck="none"),
    )
    write_record(report, tmp_path / "stored.json")
    return tmp_path / "stored.json"


def here() -> dict[str, Any]:
    """This machine as a run stores it."""
    import torch

    found = environment(sys.executable)
    return {
        "cpu": found.cpu,
        "usable_cpus": found.usable_cpus,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def gate(project: Path, path: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, all that was printed, and the JSON."""
    result = subprocess.run(
        [sys.executable, "-m", "torchdoctor.cli.front", "gate", "--quiet", "--output", "out",
         "--budget", "3m", "--steps", "20", "--baseline", str(path),
         *arguments, "train.py"],
        cwd=project, capture_output=True, text=True, check=False, timeout=600,
        stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    file = project / "out" / "gate.json"
    written = json.loads(file.read_text()) if file.exists() else {}
    return result.returncode, " ".join((result.stdout + result.stderr).split()), written


def test_more_time_and_more_memory_than_stored_fail(project: Path, tmp_path: Path) -> None:
    path = stored(tmp_path, [0.00200, 0.00202, 0.00198, 0.00200], 10**7, **here())
    code, said, written = gate(project, path)
    assert code == 1, said
    assert written["answer"][0]["fact"] == "worse"
    assert written["answer"][0]["values"]["names"] == ["step_time", "peak_memory"]
    rows = {row["name"]: row for row in written["metrics"]}
    assert set(rows) == {"step_time", "peak_memory", "data_loader_share"}
    assert rows["step_time"]["unit"] == "s/step"
    assert rows["step_time"]["ratio"]["estimate"] > 3.0


def test_another_command_is_said_before_anything_is_launched(tmp_path: Path) -> None:
    path = stored(tmp_path, [0.0025] * 3, 10**9)
    workload = Workload(command=["python3", "other.py", "--lr", "1"], cwd=str(tmp_path))
    settings = GateSettings(tolerances={})
    with pytest.raises(Inconclusive, match=r"another command \(train.py then, other.py --lr 1 now"):
        gate_against_report(workload, read_stored(path), "a.json", settings, lambda event: None)
    assert list(tmp_path.iterdir()) == [path]


def test_another_machine_or_time_per_sample_is_not_comparable(tmp_path: Path) -> None:
    report = read_stored(stored(tmp_path, [0.0025] * 3, 10**9, samples=4.0))
    steps = replace(report.steps, samples_per_step=None)
    said = not_comparable(report.environment, steps, report)
    assert said is not None and "batch" in said
    assert not_comparable(report.environment, report.steps, report) is None
    elsewhere = replace(report, environment=replace(report.environment, cpu="Z80"))
    here_now = replace(report.environment, cpu="6502")
    said = not_comparable(here_now, report.steps, elsewhere)
    assert said is not None and "Z80" in said and "6502" in said
