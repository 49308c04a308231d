"""`torchdoctor.run` and `torchdoctor.report`: the commands for scripts and notebooks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from html import unescape
from pathlib import Path

import pytest
from run_folders import OBSERVED_MS, report_with_run
from samples import SAMPLES

import torchdoctor
from torchdoctor.reports.formats import in_python, rendered
from torchdoctor.reports.pictures import pictures
from torchdoctor.schema import ProgramFailure, Report
from torchdoctor.schema.errors import Interrupted, ProgramFailed, UsageError
from torchdoctor.schema.record_files import write_record

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def test_a_training_script_that_imports_it_waits_for_nothing() -> None:
    code = "import sys, torchdoctor; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in ran.stdout.split() if name.partition(".")[0] == "torchdoctor"}
    assert ours == {"torchdoctor"}
    assert not {"torch", "typer", "msgspec", "numpy"} & set(ran.stdout.split())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict:
    """What a run is asked to measure; its report is a stored one."""
    asked: dict = {"report": SAMPLES["loader_bound"]()}

    def checkup(workload, settings, progress) -> Report:
        asked.update(workload=workload, settings=settings)
        return asked["report"]

    monkeypatch.setattr("torchdoctor.runs.run.checkup", checkup)
    return asked


def test_options_are_those_of_the_command(measured, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my train.py").write_text("")
    report = torchdoctor.run(
        "'my train.py' --lr 0.1 --budget 3",
        budget="2m",
        fixes=["loader-workers", "cpu-threads"],
        skip="tf32",
        no_fixes=True,
        sequential=False,
        steps=None,
        seed=3,
        output=tmp_path / "out",
        quiet=True,
    )
    settings = measured["settings"]
    assert (settings.budget_s, settings.seed, settings.steps) == (120.0, 3, None)
    assert (settings.fixes, settings.skip) == (["loader-workers", "cpu-threads"], ["tf32"])
    assert settings.no_fixes and settings.side_by_side
    assert measured["workload"].command[1:] == ["my train.py", "--lr", "0.1", "--budget", "3"]
    assert isinstance(report, Report)
    assert Path(settings.output) == tmp_path / "out"
    assert capsys.readouterr().out == "", "the report is handed back, not printed"
    torchdoctor.run([Path("my train.py"), "--lr", "a b"], quiet=True)
    assert measured["workload"].command[1:] == ["my train.py", "--lr", "a b"]


def test_what_ends_the_command_is_raised(measured, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    for options, sentence in (
        ({"steps": 2}, "--steps"),
        ({"colour": "red"}, "--colour"),
        ({"budget": "soon"}, "'soon' is"),
    ):
        with pytest.raises(UsageError, match=sentence):
            torchdoctor.run("train.py", quiet=True, **options)
    with pytest.raises(UsageError):
        torchdoctor.run("missing.py", quiet=True)
    whole = measured["report"]
    measured["report"] = replace(whole, interrupted=True)
    with pytest.raises(Interrupted) as interrupted:
        torchdoctor.run("train.py", quiet=True)
    assert interrupted.value.exit_code == 130
    failure = ProgramFailure(steps=12, exit_code=1, output_tail="ValueError: no")
    measured["report"] = replace(whole, failure=failure)
    with pytest.raises(ProgramFailed, match="failed after at least 12 steps"):
        torchdoctor.run("train.py", quiet=True)
    with pytest.raises(UsageError, match="There is no run"):
        torchdoctor.report()
    for command in (5, None, "train.py 'a", b"train.py", [1]):
        with pytest.raises(UsageError, match="as a line or as a list of words"):
            torchdoctor.run(command)
    for path in (5, b"report.json", ["report.json"]):
        with pytest.raises(UsageError, match="Give the path of a report, not"):
            torchdoctor.report(path)


def test_a_run_folder_that_was_moved_keeps_its_steps(tmp_path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    before.mkdir()
    write_record(replace(report_with_run(before), run_folder=str(before)), before / "report.json")
    steps = len(torchdoctor.report(before).steps_frame())
    alone = tmp_path / "report.json"
    alone.write_bytes((before / "report.json").read_bytes())
    (before / "recording.json").touch()
    before.rename(now)
    assert len(torchdoctor.report(now).steps_frame()) == steps > 0
    [steps_shown] = [x for x in pictures(torchdoctor.report(alone)) if x.key == "steps"]
    assert steps_shown.missing is not None and str(before) in steps_shown.missing
    assert steps_shown.missing in unescape(rendered(torchdoctor.report(alone), "html"))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_notebook_shows_the_first_screen_and_a_terminal_too(name) -> None:
    report = SAMPLES[name]()
    shown = in_python(report)
    assert [getattr(shown, x.name) for x in fields(Report)] == [
        getattr(report, x.name) for x in fields(Report)
    ]
    frame = shown._repr_html_()
    page = unescape(frame.partition('srcdoc="')[2].partition('"')[0])
    assert page.startswith("<!doctype html>") and "How to reproduce" not in page
    assert re.split(r"\d", report.diagnosis.sentence)[0] in page
    assert repr(shown) == rendered(report, "terminal", full=False, folder=str(Path.cwd()))


def test_frames_have_the_trials_and_the_steps(tmp_path, monkeypatch) -> None:
    report = in_python(SAMPLES["loader_bound"]())
    trials = report.trials_frame()
    assert len(trials) == len(report.trials)
    best = trials.iloc[0]
    assert (best["fixes"], best["name"]) == ("loader-workers (num_workers=2)", "loader workers")
    assert best["verdict"] == "faster"
    assert best["low"] < best["speedup"] < best["high"]
    assert set(trials["verdict"]) >= {"faster", "refused", "same"}
    assert list(report.steps_frame().columns)[-1] == "step_s" and report.steps_frame().empty
    steps = in_python(report_with_run(tmp_path)).steps_frame()
    assert set(steps["launches"]) == {"observed", "baseline", "recommended"}
    observed = steps[steps["launches"] == "observed"]
    assert observed["step_s"].median() == pytest.approx(OBSERVED_MS / 1000)
    assert observed["ended_s"].is_monotonic_increasing
    assert list(in_python(replace(report, trials=[])).trials_frame().columns) == list(
        trials.columns
    )
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas") as lacking:
        report.trials_frame()
    assert lacking.value.__suppress_context__ and lacking.value.__cause__ is None, "one traceback"


def test_a_stored_report_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "torchdoctor-runs" / "run"
    run.mkdir(parents=True)
    write_record(SAMPLES["nothing_found"](), run / "report.json")
    assert torchdoctor.report() == torchdoctor.report(run) == torchdoctor.report(str(run))


CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CELLS = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_the_notebook_is_executed() -> None:
    """After a change: jupyter nbconvert --to notebook --execute --inplace docs/notebook.ipynb."""
    kinds = [output["output_type"] for cell in CELLS for output in cell["outputs"]]
    assert "error" not in kinds and kinds.count("execute_result") == 5
    assert [cell["execution_count"] for cell in CELLS] == [*range(1, len(CELLS) + 1)]


@pytest.mark.slow
@pytest.mark.xdist_group("trials")
def test_the_notebook_runs(tmp_path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in CELLS).replace('"5m"', '"30s"')
    ran = subprocess.run(
        [sys.executable, "-"], input=code, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("2 ")
