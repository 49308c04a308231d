"""What a report tells to type works with the command that printed it, in each form."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from commands import told, torchdoctor
from samples import loader_bound, nothing_found
from typer.testing import CliRunner

from torchdoctor.cli import stored
from torchdoctor.cli.front import app
from torchdoctor.reports.formats import rendered
from torchdoctor.schema import FixSet, Interval, PatchTrial
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import write_record

EDIT = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_each_form_applies_what_ran_as_a_patch_and_only_shows_other_edits(form, patched) -> None:
    report = loader_bound()
    [fix] = report.recommendation.fixes
    offered = replace(fix, fix="pin-memory", settings={}, edit=EDIT, standing="confirmed")
    ran = replace(report.trials[0], fixes=FixSet.of("pin-memory"), patched=patched)
    recommended = replace(report.recommendation, also_offered=[offered])
    report = replace(report, recommendation=recommended, trials=[ran], run_folder="/a b/run")
    commands = told(rendered(report, form))
    patch = ["torchdoctor", "patch", "/a b/run"]
    alone = [*patch, "--fixes", "pin-memory"]
    assert [*patch, "--apply"] in commands
    assert [*alone, "--apply"] in commands if patched else alone in commands
    assert ([*alone, "--apply"] in commands) is patched


def test_a_patch_that_was_measured_to_be_slower_is_not_to_be_applied() -> None:
    """15.7x stood above "Apply it", and below it that the patched program runs 0.19x."""
    report = replace(loader_bound(), run_folder="/runs/1")
    for speed, applied in ((0.19, False), (15.0, True)):
        interval = Interval(estimate=speed, low=0.9 * speed, high=1.1 * speed)
        trial = PatchTrial(speedup=interval, numerics="identical", pairs=3)
        recommended = replace(report.recommendation, patch_trial=trial, handed_out=None)
        commands = told(rendered(replace(report, recommendation=recommended), "terminal"))
        assert (["torchdoctor", "patch", "/runs/1", "--apply"] in commands) is applied


def test_each_command_says_how_to_see_the_details(tmp_path) -> None:
    path = tmp_path / "report.json"
    report = replace(loader_bound(), run_folder=str(tmp_path))
    write_record(report, path)
    screen = CliRunner().invoke(app, ["report", str(path)]).output
    assert ["torchdoctor", "report", str(tmp_path), "--details"] in told(screen)
    details = CliRunner().invoke(app, ["report", str(tmp_path), "--details"]).output
    again = ["torchdoctor", "run", "--budget", "5m", "train.py", "--epochs", "3"]
    assert again in told(details) and again not in told(screen)
    for command in ("run", "diagnose", "compare", "gate", "report"):
        help_page = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        assert "--details" in help_page


def test_without_a_name_the_newest_run_of_the_folder_is_shown(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    none = CliRunner().invoke(app, ["report"])
    assert isinstance(none.exception, UsageError)
    assert "torchdoctor-runs" in str(none.exception)
    for number, doubt in enumerate(["the older", "the newer"]):
        folder = tmp_path / "torchdoctor-runs" / f"run-{number}"
        folder.mkdir(parents=True)
        write_record(replace(loader_bound(), doubts=[doubt]), folder / "report.json")
        os.utime(folder / "report.json", (number, number))
    shown = CliRunner().invoke(app, ["report", "--details"]).output
    assert "the newer" in shown and "the older" not in shown
    page = CliRunner().invoke(app, ["explain", "loader-workers"]).output
    [tried] = [line for line in page.splitlines() if "num_workers=4): " in line]
    assert "torchdoctor-runs/run-1" in page and "3.10x (2.90-3.31)" in tried
    page = CliRunner().invoke(app, ["explain", "loader-cpu-bound"]).output
    [found] = [line for line in page.splitlines() if "train.py:31" in line]
    assert "78 %" in found and "num_workers=0" in page


def test_the_runs_of_a_folder_are_listed_the_newest_first(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, report in enumerate([loader_bound(), nothing_found()]):
        folder = tmp_path / "torchdoctor-runs" / f"run-{number}"
        folder.mkdir(parents=True)
        write_record(report, folder / "report.json")
        os.utime(folder / "report.json", (number, number))
    (tmp_path / "torchdoctor-runs" / "broken").mkdir()
    (tmp_path / "torchdoctor-runs" / "broken" / "report.json").write_text("{")
    listed = json.loads(CliRunner().invoke(app, ["report", "--list", "--format", "json"]).output)
    folders = [Path(folder).name for folder in listed["runs"]]
    assert folders == ["broken", "run-1", "run-0"]
    lines = CliRunner().invoke(app, ["report", "--list"]).output.splitlines()
    assert "3 runs" in lines[0]
    rows = [line for line in lines if line.startswith(tuple(f"  {name} " for name in folders))]
    assert [row.split()[0] for row in rows] == folders
    broken, tuned, slow = rows
    assert "train.py" not in broken and "tuned.py" in tuned
    assert "%" not in broken + tuned, "no cause and no gain is known of these"
    assert all(figure in slow for figure in ("train.py --epochs 3", "78 %", "3.10x"))


def test_a_list_obeys_or_refuses_other_options(tmp_path) -> None:
    for options in (["--list", "--details"], ["--list", "x"], ["--open", "--format", "html"]):
        refused = torchdoctor("report", *options, cwd=tmp_path)
        assert refused.returncode == 2
        assert "--list" in refused.stderr and "--open" in refused.stderr


def test_the_page_goes_to_a_terminal_of_any_encoding(tmp_path, monkeypatch) -> None:
    write_record(replace(loader_bound(), run_folder=None), tmp_path / "report.json")
    page = io.BytesIO()
    terminal = io.TextIOWrapper(page, encoding="latin-1")
    monkeypatch.setattr("sys.stdout", terminal)
    stored.report(tmp_path / "report.json", format="html")
    terminal.flush()
    assert "“" in page.getvalue().decode("utf-8")


def test_the_page_is_opened_where_there_is_a_desktop(tmp_path, monkeypatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    write_record(loader_bound(), tmp_path / "report.json")
    (tmp_path / "report.html").write_text("<!doctype html>")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    none = CliRunner().invoke(app, ["report", str(tmp_path), "--open"])
    assert isinstance(none.exception, UsageError)
    assert str(tmp_path / "report.html") in str(none.exception)
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert CliRunner().invoke(app, ["report", str(tmp_path), "--open"]).exit_code == 0
    assert opened == [(tmp_path / "report.html").as_uri()]
    (tmp_path / "report.html").unlink()
    assert CliRunner().invoke(app, ["report", str(tmp_path), "--open"]).exit_code == 0
    assert "loader workers" in Path(opened[1].removeprefix("file://")).read_text()
