"""What a gate hands out, also where it ends early: `torchdoctor gate` with its measuring replaced.

The command runs in a process of its own, with a module in front that stands for the launches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from torchdoctor.gate.settings import tolerances
from torchdoctor.schema.errors import UsageError

ROOT = Path(__file__).parent.parent.parent
# What the measuring does instead, by the variable OUTCOME.
FRONT = """
import os
from torchdoctor.schema.errors import Inconclusive, NoStepFound, ProgramFailed
from torchdoctor.gate import gate_run
from torchdoctor.schema import Environment, WorkloadRecord
from torchdoctor.schema.gate import GateReport

def run(self):
    outcome = os.environ["OUTCOME"]
    if outcome == "inconclusive":
        raise Inconclusive("The program of HEAD cannot be measured: It failed.")
    if outcome == "failed":
        raise ProgramFailed(
            "It failed.", 1,
            "Traceback: 50 % | more\\n  at it\\nValueError: no such file")
    if outcome == "interrupted":
        raise KeyboardInterrupt
    if outcome == "no step":
        raise NoStepFound("No training step was found.")
    os.makedirs(os.path.join("out", os.environ.get("IN_THE_WAY", "")))
    return GateReport(
        run_folder=os.path.abspath("out"),
        workload=WorkloadRecord(command=["train.py"]), environment=Environment(),
        reference="HEAD", verdict=outcome, sentence="As it is.",
    )

gate_run.GateRun.run = run
from torchdoctor.cli.front import main
main()
"""


def test_a_file_that_cannot_be_written_at_the_end_costs_nothing_else(tmp_path: Path) -> None:
    """It could when the gate began; the verdict, its exit code and the other files stand."""
    result = gate(tmp_path, "slower", IN_THE_WAY="gate.md")
    assert result.returncode == 1 and "As it is." in result.stdout
    assert "gate.md" in result.stderr
    assert (tmp_path / "out" / "gate.json").exists() and (tmp_path / "out" / "gate.xml").exists()


def gate(folder: Path, outcome: str, **more: str) -> subprocess.CompletedProcess:
    (folder / "train.py").write_text("")
    (folder / "front.py").write_text(FRONT)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    behind = more.pop("behind", "")
    command = [sys.executable, "front.py", "gate", "--quiet", "--against", "HEAD",
               "--output", "out", "train.py"]  # fmt: skip
    if behind:
        command = ["bash", "-c", f'set -o pipefail; "$@" {behind}', "bash", *command]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=600,
        env={**clean, "PYTHONPATH": str(ROOT), "OUTCOME": outcome, **more},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "code", "kind", "said"),
    [
        ("inconclusive", 6, "warning", "The program of HEAD cannot be measured: It failed."),
        ("failed", 3, "error", "It failed. It says: ValueError: no such file"),
        ("no step", 4, "error", "No training step was found."),
    ],
)
def test_a_gate_that_measures_nothing_says_why_in_every_file(
    tmp_path: Path, outcome: str, code: int, kind: str, said: str
) -> None:
    """Neither JSON nor annotation nor summary was there, so a CI showed no reason at all."""
    summary = tmp_path / "summary.md"
    result = gate(tmp_path, outcome, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    assert result.returncode == code, result.stderr
    assert result.stdout == f"::{kind} title=torchdoctor gate::{said}\n"
    assert result.stderr.startswith(f"torchdoctor: {said.partition(' It says')[0]}")
    found = json.loads((tmp_path / "out" / "gate.json").read_text())
    jsonschema.validate(found, json.loads((ROOT / "docs" / "gate.schema.json").read_text()))
    assert (found["verdict"], found["sentence"]) == ("inconclusive", said)
    assert (found["reference"], found["metrics"]) == ("HEAD", [])
    title = "NOT DECIDED" if code == 6 else "NOT MEASURED"
    assert said in summary.read_text() and title in summary.read_text()
    assert "---" not in summary.read_text(), "a table without rows"
    suite = ElementTree.parse(tmp_path / "out" / "gate.xml").getroot()
    counted, case = ("skipped", "skipped") if code == 6 else ("errors", "error")
    assert found["broken"] == (code != 6), "a crash stood among the skipped tests"
    assert suite.attrib["tests"] == suite.attrib[counted] == "1"
    assert int(suite.attrib["errors"]) + int(suite.attrib["skipped"]) == 1
    assert suite.find(f"testcase/{case}").attrib["message"] == said


def test_ctrl_c_before_the_first_pair_leaves_files_that_say_so(tmp_path: Path) -> None:
    """A CI that ends a job reads the file and found none."""
    result = gate(tmp_path, "interrupted")
    assert result.returncode == 130, result.stderr
    found = json.loads((tmp_path / "out" / "gate.json").read_text())
    assert (found["verdict"], found["interrupted"]) == ("inconclusive", True)
    assert found["metrics"] == []
    assert [told["fact"] for told in found["answer"]] == ["interrupted-before-pairs"]
    assert (tmp_path / "out" / "gate.md").exists() and (tmp_path / "out" / "gate.xml").exists()


def test_a_folder_of_another_gate_keeps_its_result(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gate.json").write_text("that of yesterday")
    result = gate(tmp_path, "failed")
    assert result.returncode == 2 and "is not empty" in result.stderr, result.stderr
    assert (tmp_path / "out" / "gate.json").read_text() == "that of yesterday"


def test_a_tolerance_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """The last one won silently: which of the two was meant nobody can know."""
    with pytest.raises(UsageError, match="names step_time twice"):
        tolerances(str(tmp_path), "step_time=5%,step_time=50%")


def test_a_wrong_command_line_is_an_annotation_too(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "torchdoctor.cli.front", "gate", "train.py"], cwd=tmp_path,
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GITHUB_ACTIONS": "true"},
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stdout.startswith("::error ")
    assert "--against" in result.stdout and "--baseline" in result.stdout


def test_a_summary_that_cannot_be_written_does_not_change_the_verdict(tmp_path: Path) -> None:
    """It was a defect of ours, exit code 70."""
    summary = tmp_path / "nowhere" / "summary.md"
    result = gate(tmp_path, "slower", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    assert result.returncode == 1, result.stderr
    assert result.stderr.count("\n") == 1 and "step summary" in result.stderr
    [annotation] = [line for line in result.stdout.splitlines() if line.startswith("::error ")]
    assert annotation.endswith("As it is.")


def test_a_reader_that_goes_away_is_not_slower(tmp_path: Path) -> None:
    """`gate ... | true` ended with 1, which means slower, and wrote no file."""
    result = gate(tmp_path, "not slower", behind="| true")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert json.loads((tmp_path / "out" / "gate.json").read_text())["verdict"] == "not slower"
