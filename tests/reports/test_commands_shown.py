"""What a report tells to type works with the command that printed it, in each form."""

from __future__ import annotations

import os
from dataclasses import replace
from html import unescape

import pytest
from samples import loader_bound
from typer.testing import CliRunner

from torchdoctor.cli.front import app
from torchdoctor.reports.formats import rendered
from torchdoctor.reports.wording import patch_commands
from torchdoctor.words.errors import UsageError
from torchdoctor.words.record_files import write_record

EDIT = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_each_form_has_the_command_that_applies_an_edit(form) -> None:
    report = loader_bound()
    [fix] = report.recommendation.fixes
    offered = replace(fix, fix="pin-memory", settings={}, edit=EDIT, standing="offered")
    recommended = replace(report.recommendation, patch=EDIT, also_offered=[offered])
    report = replace(report, recommendation=recommended, run_folder="/a b/run")
    lines = [line.strip() for line in unescape(rendered(report, form)).splitlines()]
    text = "\n".join(lines)
    assert "torchdoctor patch '/a b/run/report.json' | git apply" in text
    assert "torchdoctor patch '/a b/run/report.json' --fix pin-memory | git apply" in text


def test_each_command_says_how_to_see_the_details(tmp_path) -> None:
    path = tmp_path / "report.json"
    report = replace(loader_bound(), run_folder=str(tmp_path))
    write_record(report, path)
    screen = CliRunner().invoke(app, ["report", str(path)]).output
    assert f"details: torchdoctor report {tmp_path} --details" in screen
    details = CliRunner().invoke(app, ["report", str(tmp_path), "--details"]).output
    assert "How to reproduce" in details and "How to reproduce" not in screen
    for command in ("run", "diagnose", "compare", "gate", "report"):
        help_page = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        assert "--details" in help_page


def test_without_a_name_the_newest_run_of_the_folder_is_shown(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    none = CliRunner().invoke(app, ["report"])
    assert isinstance(none.exception, UsageError)
    assert "There is no run in torchdoctor-runs" in str(none.exception)
    for number, doubt in enumerate(["the older", "the newer"]):
        folder = tmp_path / "torchdoctor-runs" / f"run-{number}"
        folder.mkdir(parents=True)
        write_record(replace(loader_bound(), doubts=[doubt]), folder / "report.json")
        os.utime(folder / "report.json", (number, number))
    shown = CliRunner().invoke(app, ["report", "--details"]).output
    assert "the newer" in shown and "the older" not in shown
    page = CliRunner().invoke(app, ["explain", "loader-workers"]).output
    assert "In the newest run here (torchdoctor-runs/run-1):" in page
    assert "loader-workers (num_workers=4): faster, 3.10x (2.90-3.31)" in page
    page = CliRunner().invoke(app, ["explain", "loader-cpu-bound"]).output
    assert "78 %  train.py:31" in page and "Fetching a batch keeps one CPU busy" in page


def test_a_patch_of_another_folder_is_applied_there() -> None:
    """Printed where the run was started, `git apply` found none of the program's files."""
    report = loader_bound()
    made = replace(report.recommendation, patch="--- a\n", patch_folder="/else/where")
    report = replace(report, recommendation=made, run_folder="/run")
    (command,) = patch_commands(report, made.fixes)
    assert command.endswith("/run/report.json | git -C /else/where apply")
    here = replace(made, patch_folder=report.workload.cwd)
    (command,) = patch_commands(replace(report, recommendation=here), made.fixes)
    assert command.endswith(" | git apply")
