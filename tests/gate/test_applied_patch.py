"""A gate of an applied patch accepts the memory that its report told, and nothing more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchdoctor.gate.answer import answer
from torchdoctor.gate.applied_patch import told_memory
from torchdoctor.gate.figures import memory
from torchdoctor.gate.settings import DEFAULT_TOLERANCES
from torchdoctor.reports.gate_facts import with_sentence
from torchdoctor.schema import (
    Baseline,
    Diagnosis,
    Environment,
    FixSet,
    Interval,
    Recommendation,
    RecommendedFix,
    Report,
    StepTime,
    Trial,
    WorkloadRecord,
)
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.gate import GateMetric, GateReport
from torchdoctor.schema.record_files import write_record

WORKERS, THREADS = {"num_workers": 2}, {"num_threads": 1}
MB = 10**6
DIFF = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"


def a_report(launches: int = 4, cwd: str = "") -> Report:
    """Two fixes are recommended together, and the patch is of the first alone."""
    fixes = [
        RecommendedFix(fix="loader-workers", settings=WORKERS, edit=DIFF),
        RecommendedFix(fix="cpu-threads", settings=THREADS),
    ]
    gain = Interval(estimate=2.0, low=1.9, high=2.1)
    of_patch = FixSet({"loader-workers": WORKERS})
    both = FixSet({"loader-workers": WORKERS, "cpu-threads": THREADS})
    return Report(
        workload=WorkloadRecord(command=["python", "train.py"], cwd=cwd),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="data"),
        baseline=Baseline(
            step_time_s=StepTime(median=0.1, p10=0.1, p90=0.1, steps=30),
            launches_s=[0.1] * launches,
            peak_memory_bytes=301 * MB,
        ),
        trials=[
            Trial(fixes=of_patch, speedup=gain, pairs=3, memory_growths=[1.15, 1.22, 1.18]),
            Trial(fixes=both, speedup=gain, pairs=3, memory_growths=[1.9]),
            Trial(fixes=FixSet.of("cpu-threads", THREADS), memory_growths=[0.97, 0.99]),
        ],
        recommendation=Recommendation(
            fixes=fixes, speedup=gain, pairs=3, patch=DIFF, patch_fixes=["loader-workers"]
        ),
    )


def test_what_was_told_is_the_widest_pair_of_just_the_applied_fixes() -> None:
    report = a_report()
    assert told_memory(report) == pytest.approx(0.22)
    assert told_memory(report, ["loader-workers", "cpu-threads"]) == pytest.approx(0.9)
    assert told_memory(report, ["cpu-threads"]) == 0.0, "less memory allows no more"
    with pytest.raises(UsageError):
        told_memory(report, ["channels-last"])


def row(new_mb: int, told: float | None) -> GateMetric:
    return memory([301.0 * MB] * 3, [float(new_mb * MB)] * 3, DEFAULT_TOLERANCES, told)


@pytest.mark.parametrize(
    ("new_mb", "told", "verdict"),
    [
        (364, None, "worse"),  # as a gate of the patch that the report itself had recommended
        (364, 0.22, "ok"),
        (370, 0.22, "ok"),  # another launch of the same patch, which varies as ever
        (410, 0.22, "worse"),
        (325, 0.0, "ok"),  # within the tolerance of every gate
        (364, 0.0, "worse"),
    ],
)
def test_memory_grows_as_told_and_no_further(new_mb: int, told: float | None, verdict: str) -> None:
    assert row(new_mb, told).verdict == verdict


def test_the_answer_says_what_was_allowed_because_it_was_told() -> None:
    time = GateMetric(name="step_time", unit="s/step", tolerance=0.02, verdict="ok")
    for new_mb, told, named in ((364, 0.22, ["peak_memory"]), (320, 0.22, []), (320, None, [])):
        rows = [time, row(new_mb, told)]
        facts = answer(rows, "not slower", "main")
        allowed = [fact for fact in facts if fact.fact == "allowed-as-told"]
        assert [fact.values["metric"] for fact in allowed] == named
        about = {"workload": WorkloadRecord(command=[]), "environment": Environment()}
        result = GateReport(
            **about, reference="main", verdict="not slower", answer=facts, metrics=rows
        )
        assert ("told" in with_sentence(result).sentence) == bool(named)


@pytest.mark.parametrize(
    ("launches", "fixes", "reference", "applied"),
    [
        (4, [], "--baseline", []),
        (2, [], "--against", []),
        (4, ["--fixes", "loader-workers"], "--baseline", ["--fixes", "loader-workers"]),
    ],
)
def test_the_check_of_a_patch_names_its_report(
    tmp_path: Path, launches: int, fixes: list[str], reference: str, applied: list[str]
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text("x = 1\n")
    report = a_report(launches, str(tmp_path))
    path = tmp_path / "report.json"
    write_record(report, path)
    printed = subprocess.run(
        [sys.executable, "-m", "torchdoctor.cli.front", "patch", str(path), *fixes,
         "--format", "json"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    words = json.loads(printed)["check"]["command"].split()
    assert reference in words
    named = words.index("--patch-of")
    assert words[named : words.index("--")] == ["--patch-of", str(path), *applied]


def test_fixes_without_a_report_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    ran = subprocess.run(
        [sys.executable, "-m", "torchdoctor.cli.front", "gate", "--against", "HEAD",
         "--fixes", "cpu-threads", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 2 and "--patch-of" in ran.stderr
