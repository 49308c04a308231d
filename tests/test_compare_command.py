"""`torchdoctor compare`: what changed, the largest first."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchdoctor.comparison import compare
from torchdoctor.errors import Inconclusive
from torchdoctor.record_files import write_report
from torchdoctor.records import (
    Baseline,
    Diagnosis,
    Environment,
    Finding,
    Gpu,
    Location,
    Report,
    Shares,
    StepTime,
    WorkloadRecord,
)
from torchdoctor.reports.comparison import terminal, verdict

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("TORCHDOCTOR_TRACES", ROOT.parent / "shared" / "traces"))
_PATH = ROOT / "tests" / "recording" / "synthetic_traces.py"
_SPEC = importlib.util.spec_from_file_location("synthetic_for_compare", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
synthetic = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(synthetic)


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "torchdoctor.cli", "compare", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def report(step_s: float = 0.010, launches: list[float] | None = None, **more) -> Report:
    shares = Shares(data_loader=0.2, cpu=0.8, other=0.0)
    time = StepTime(median=step_s, p10=step_s, p90=step_s, steps=30, mean=step_s)
    return Report(
        workload=WorkloadRecord(command=["train.py"]),
        environment=more.pop("environment", Environment()),
        baseline=Baseline(
            step_time_s=time, shares=more.pop("shares", shares), launches_s=launches or []
        ),
        diagnosis=more.pop("diagnosis", Diagnosis(bottleneck="cpu")),
        **more,
    )


def trace(folder: Path, name: str, extra_us: float) -> Path:
    """Steps of 1000 us, and a data loader that takes so much longer."""
    built = synthetic.TraceBuilder()
    for number in range(5):
        length = 1000.0 + extra_us
        at = number * length
        built.step(number, at, at + length)
        launch = built.call("cudaLaunchKernel", at, at + 10)
        built.kernel("ampere_sgemm_128x64_nn", at + 10, at + 900, launch)
        built.slice("user_annotation", synthetic.LOADER, at + 900, at + 1000 + extra_us)
    path = folder / name
    path.write_bytes(built.text())
    return path


def test_a_slower_loader_is_named_first(tmp_path: Path) -> None:
    before, after = trace(tmp_path, "a.json", 0.0), trace(tmp_path, "b.json", 300.0)
    result = command(str(before), str(after))
    assert result.returncode == 0, result.stderr
    assert "1.30x slower per step" in result.stdout
    assert "waiting for data" in result.stdout.split(".\n")[0].replace("\n", " ")
    assert "+300 us" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    back = command(str(after), str(before)).stdout
    assert "1.30x faster per step" in back
    same = command(str(before), str(before)).stdout
    assert "No difference" in same


def test_the_recorded_traces_with_and_without_workers() -> None:
    files = [SHARED / f"v100_resnet50_workers{n}.json.gz" for n in (0, 4)]
    if not all(file.exists() for file in files):
        pytest.skip(f"no recorded traces in {SHARED} (set TORCHDOCTOR_TRACES to their folder)")
    text = command(*map(str, files)).stdout
    assert "1.26x faster" in text
    assert text.index("waiting for data") < text.index("CPU operators")


def test_launches_decide_whether_there_is_a_difference() -> None:
    noisy = compare(report(0.010, [0.008, 0.012, 0.010]), report(0.011, [0.009, 0.013, 0.011]))
    assert noisy.ratio is not None
    assert noisy.ratio.low < 1 < noisy.ratio.high
    assert "No difference" in verdict(noisy)
    clear = compare(
        report(0.010, [0.0100, 0.0101, 0.0099]), report(0.012, [0.0120, 0.0121, 0.0119])
    )
    assert clear.ratio is not None
    assert clear.ratio.low > 1.1
    assert "1.20x slower" in verdict(clear)


def test_findings_that_came_and_went_and_another_machine() -> None:
    place = Location(file="train.py", line=41)
    new = Finding(check="loader-cpu-bound", evidence=["It computes."], location=place)
    found = compare(
        report(0.010, environment=Environment(gpus=[Gpu(index=0, name="A100")])),
        report(
            0.012,
            environment=Environment(gpus=[Gpu(index=0, name="H100")]),
            diagnosis=Diagnosis(bottleneck="data_loader", findings=[new]),
            shares=Shares(data_loader=0.35, cpu=0.65, other=0.0),
        ),
    )
    assert found.branches[0].name == "data_loader"
    assert "new: loader-cpu-bound at train.py:41" in verdict(found)
    assert any("A100" in doubt and "H100" in doubt for doubt in found.doubts)
    assert "It computes." in terminal(found)


def test_a_report_and_a_trace_may_be_mixed(tmp_path: Path) -> None:
    write_report(report(0.001, [0.001, 0.001]), tmp_path / "report.json")
    path = trace(tmp_path, "b.json", 300.0)
    result = command(str(tmp_path / "report.json"), str(path))
    assert result.returncode == 0, result.stderr
    assert "a profiled step is longer" in result.stdout.replace("\n    ", " ")


def test_bad_input(tmp_path: Path) -> None:
    good = trace(tmp_path, "a.json", 0.0)
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    for bad in (str(text), str(tmp_path / "none.json")):
        result = command(str(good), bad)
        assert result.returncode == 2
        assert result.stderr.startswith("torchdoctor: ")
    empty = replace(report(), baseline=Baseline())
    with pytest.raises(Inconclusive, match="no step time"):
        compare(report(), empty)
