"""What a report tells to type works with the command that printed it, in each form."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import pytest
from samples import loader_bound
from typer.testing import CliRunner

from torchdoctor.cli.front import app
from torchdoctor.reports import html, markdown, terminal
from torchdoctor.reports.content import patch_commands
from torchdoctor.words import Report, Trial
from torchdoctor.words.record_files import write_report

EDIT = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"


@pytest.mark.parametrize("form", [terminal, markdown, html])
def test_each_form_has_the_command_that_applies_an_edit(form) -> None:
    report = loader_bound()
    [fix] = report.recommendation.fixes
    offered = replace(fix, fix="pin-memory", settings={}, edit=EDIT, standing="offered")
    recommended = replace(report.recommendation, patch=EDIT, also_offered=[offered])
    report = replace(report, recommendation=recommended, run_folder="/a b/run")
    lines = [line.strip() for line in unescape(form.render(report)).splitlines()]
    text = "\n".join(lines)
    assert "torchdoctor patch '/a b/run/report.json' | git apply" in text
    assert "torchdoctor patch '/a b/run/report.json' --fix pin-memory | git apply" in text


def many_refused() -> Report:
    refused = [Trial(fix=f"fix-{n}", verdict="refused", reason=f"Reason {n}") for n in range(9)]
    return replace(loader_bound(), trials=refused)


def test_the_form_with_every_reason_is_named_for_the_command_at_hand(tmp_path, capsys) -> None:
    """`report` has no --html, and the commands that measure have no --format."""
    path = tmp_path / "report.json"
    write_report(many_refused(), path)
    again = CliRunner().invoke(app, ["report", str(path)])
    assert "with --format html." in " ".join(again.output.split())
    assert CliRunner().invoke(app, ["report", str(path), "--format", "html"]).exit_code == 0

    terminal.print_report(many_refused())
    printed = " ".join(capsys.readouterr().out.split())
    assert "with --html FILE." in printed
    for command in ("run", "diagnose"):
        help_page = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        assert "--html" in help_page


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
