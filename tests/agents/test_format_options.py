"""`--format` and `--output` mean the same on every command, and JSON leads on to JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import commands
import pytest
import typer.main
from compared_pairs import samples

from torchdoctor.cli import front
from torchdoctor.reports import status
from torchdoctor.reports.summary import of_report, with_json
from torchdoctor.schema.record_files import write_record

GROUP: Any = typer.main.get_command(front.app)
WITHOUT = {"mcp", "watch"}  # which speak a protocol, and with the program's own output
FOLDERS = {"run", "gate", "watch"}


def options(name: str) -> dict[str, Any]:
    return {opt: option for option in GROUP.commands[name].params for opt in option.opts}


def stored_run(folder: Path, **changes: object) -> Path:
    run = folder / "torchdoctor-runs" / "1"
    run.mkdir(parents=True)
    report = dataclasses.replace(samples.loader_bound(), run_folder=str(run), **changes)
    write_record(report, run / "report.json")
    return run


def test_every_command_has_both_options_and_no_other_of_their_kind() -> None:
    for name in GROUP.commands:
        has = options(name)
        assert ("--format" in has) == (name not in WITHOUT), name
        assert ("--output" in has) == (name != "mcp"), name
        if "--output" in has:
            assert ("folder" in has["--output"].help) == (name in FOLDERS), name
        assert not {"--json", "--html", "--markdown", "--junit"} & set(has), name


def test_the_ending_of_a_file_is_its_format_and_a_named_format_wins(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    for ending, begins in (("json", "{"), ("md", "### "), ("html", "<!doctype"), ("out", "torchd")):
        file = tmp_path / f"answer.{ending}"
        done = commands.torchdoctor("report", run, "--output", file)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert str(file) in done.stderr
        assert file.read_text(encoding="utf-8").startswith(begins)
    named = tmp_path / "named.json"
    done = commands.torchdoctor("report", run, "--format", "markdown", "--output", named)
    assert done.returncode == 0 and named.read_text(encoding="utf-8").startswith("### ")


def test_a_file_and_the_screen_get_the_same_answer(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    for words in (["report", run], ["explain", "data-wait"], ["explain", "--all"], ["patch", run]):
        for form in ("text", "json", "markdown"):
            file = tmp_path / f"{words[0]}-{Path(words[-1]).name}-{form}"
            shown = commands.torchdoctor(*words, "--format", form, cwd=tmp_path)
            written = commands.torchdoctor(*words, "--format", form, "--output", file, cwd=tmp_path)
            assert written.returncode == shown.returncode == 0, written.stderr
            assert file.read_text(encoding="utf-8") == shown.stdout


def test_an_ending_that_a_command_has_no_format_for_is_refused(tmp_path: Path) -> None:
    done = commands.torchdoctor("explain", "data-wait", "--output", tmp_path / "page.sarif")
    assert done.returncode == 2 and "sarif" in done.stderr
    assert not (tmp_path / "page.sarif").exists()


def test_the_exit_code_stays_that_of_the_answer(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    file = tmp_path / "report.md"
    assert commands.torchdoctor("report", run, "--exit-code", "--output", file).returncode == 10
    assert file.exists()


def test_json_names_a_next_command_that_answers_with_json(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    status.StatusFile(run).diagnosed(samples.loader_bound())
    for words in (
        ["report", run],
        ["report", "--status", run],
        ["explain", "loader-cpu-bound"],
        ["patch", run],
    ):
        printed = commands.torchdoctor(*words, "--format", "json", cwd=tmp_path).stdout
        following = json.loads(printed)["summary"]["next"]["command"]
        assert following.count("--format json") == 1, following
        name, *others = following.split()[1:]
        assert name in GROUP.commands and "--format" in options(name), others
        text = commands.torchdoctor(*words, cwd=tmp_path)
        assert "--format json" not in text.stdout + text.stderr


def test_a_command_that_answers_with_json_already_stays_as_it_is() -> None:
    once = with_json(of_report(samples.loader_bound()))
    assert with_json(once) == once
    assert once.next is not None and " --format json " in once.next.command


@pytest.mark.parametrize("words", [["--tree", "--all"], ["data-wait", "--all"], ["x", "--tree"]])
def test_one_page_is_asked_for_at_a_time(words: list[str]) -> None:
    """`--tree --all` printed the tree, with exit code 0."""
    done = commands.torchdoctor("explain", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_fix_for_a_cell_is_measured_by_running_the_cell_again(tmp_path: Path) -> None:
    """`torchdoctor run ... In[3]` was told, which no shell can run."""
    cell = dataclasses.replace(samples.loader_bound().workload, command=["python", "In[3]"])
    stored_run(tmp_path, workload=cell, reproduce=["%%torchdoctor --budget 60s"])
    printed = commands.torchdoctor(
        "explain", "keep-result", "--format", "json", cwd=tmp_path
    ).stdout
    following = json.loads(printed)["summary"]["next"]
    assert following["command"] == "%%torchdoctor --fixes keep-result"
    assert "cell" in following["why"]
    again = dataclasses.replace(
        samples.loader_bound(),
        recommendation=samples.SAMPLES["interrupted"]().recommendation,
        interrupted=True,
        elapsed_s=9.0,
        reproduce=["%%torchdoctor --budget 60s"],
    )
    told = of_report(again).next
    assert told is not None and told.command.startswith("%%") and "cell" in told.why


def after_page(ident: str, folder: Path) -> str | None:
    printed = commands.torchdoctor("explain", ident, "--format", "json", cwd=folder).stdout
    following = json.loads(printed)["summary"]["next"]
    return None if following is None else following["command"].split()[-1]


def test_a_check_leads_to_a_fix_that_the_newest_run_has_not_refused(tmp_path: Path) -> None:
    """It led to the first by the alphabet, which the run had refused, and from there nowhere."""
    assert after_page("data-wait", tmp_path) is not None
    stored_run(tmp_path)
    assert after_page("data-wait", tmp_path) == "loader-workers"
    assert after_page("tf32-off", tmp_path) is None
    shown = commands.torchdoctor("explain", "tf32", cwd=tmp_path).stdout
    assert "There is no GPU" in shown, "why it was refused"


def test_a_fix_that_no_run_can_try_leads_to_no_run(tmp_path: Path) -> None:
    stored_run(tmp_path)
    assert after_page("batched-inference", tmp_path) is None
