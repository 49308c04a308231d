"""What agents read: a short summary first in every JSON, and a status while a run goes on."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import torchdoctor
from samples import SAMPLES, loader_bound, refused_heavy

from torchdoctor.reports import status
from torchdoctor.reports.summary import of_report, summarized
from torchdoctor.reports.wording import program_failed
from torchdoctor.schema import (
    Evidence,
    Finding,
    PatchTrial,
    ProgramFailure,
    ProgressEvent,
    Report,
)
from torchdoctor.schema.errors import ProgramFailed, UsageError
from torchdoctor.schema.record_files import decode_report, encode, encoded, write_record
from torchdoctor.schema.report import OtherLoad
from torchdoctor.schema.summary import MOST_BYTES
from torchdoctor.schema.verdict import Quote


def bytes_of(report: Report) -> int:
    return len(encoded(vars(of_report(report))))


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_summary_is_first_and_short(sample: str) -> None:
    report = SAMPLES[sample]()
    outline = json.loads(encode(summarized(report)))
    assert next(iter(outline)) == "summary"
    assert outline["summary"]["bottleneck"] == report.diagnosis.bottleneck
    assert bytes_of(report) <= MOST_BYTES


def test_endless_texts_leave_it_short_and_no_command_cut() -> None:
    report = loader_bound()
    finding = dataclasses.replace(
        report.diagnosis.findings[0], evidence=[Evidence(fact="long", sentence="x " * 9000)]
    )
    told = dataclasses.replace(report.diagnosis, sentence="y " * 9000, findings=[finding])
    long = dataclasses.replace(report, diagnosis=told)
    assert bytes_of(long) <= MOST_BYTES
    assert of_report(long).next == of_report(report).next
    folder = dataclasses.replace(report, run_folder="/" + "z" * 3000)
    assert bytes_of(folder) <= MOST_BYTES


def test_what_is_recommended_is_what_comes_next() -> None:
    answer = of_report(loader_bound())
    assert answer.recommendation is not None and answer.recommendation.speedup is not None
    assert answer.patch is not None and answer.next is not None
    assert answer.next.command == f"{answer.patch} --apply"


def test_a_patch_of_one_pair_is_not_said_to_be_measured_by_those_of_the_fix() -> None:
    """The evidence gave the patch all pairs, and `next` said that it is not proven."""
    report = loader_bound()
    speedup = report.recommendation.speedup
    assert speedup is not None
    recommended = dataclasses.replace(
        report.recommendation,
        handed_out="patch",
        pairs=2,
        patch_fixes=[fix.fix for fix in report.recommendation.fixes],
        patch_trial=PatchTrial(speedup=speedup, numerics="identical", pairs=1),
    )
    told = of_report(dataclasses.replace(report, recommendation=recommended))
    assert told.recommendation is not None and told.next is not None
    assert "(1 pair)" in told.recommendation.evidence
    assert "--apply" not in told.next.command


def test_waste_that_the_verdict_closes_with_is_among_the_causes() -> None:
    """86 % of the tokens were padding, and an agent read of too many threads alone."""
    report = loader_bound()
    waste = Finding(
        check="padded-tokens",
        severity="high",
        evidence=[Evidence(fact="padding", sentence="86 % of the tokens are padding.")],
    )
    verdict = dataclasses.replace(
        report.diagnosis.verdict, closing=[Quote(check="padded-tokens", facts=["padding"])]
    )
    told = dataclasses.replace(
        report.diagnosis, findings=[*report.diagnosis.findings, waste], verdict=verdict
    )
    cause = of_report(dataclasses.replace(report, diagnosis=told)).cause
    assert cause is not None and cause.startswith(str(of_report(report).cause))
    assert waste.check in cause and cause.endswith(waste.evidence[0].sentence)


def test_a_speedup_of_a_busy_machine_is_said_to_be_one() -> None:
    report = loader_bound()
    alone = of_report(report).recommendation
    assert alone is not None and "busy" not in alone.evidence
    load = OtherLoad(held=1.5, usable=2)
    told = of_report(dataclasses.replace(report, other_load=load)).recommendation
    assert told is not None and "busy" in told.evidence
    assert told.speedup == alone.speedup, "it is told, and changes no figure"


def test_an_interrupted_run_is_repeated_and_one_without_fixes_goes_on() -> None:
    report = dataclasses.replace(
        loader_bound(), recommendation=SAMPLES["interrupted"]().recommendation, interrupted=True
    )
    report = dataclasses.replace(
        report, recommendation=dataclasses.replace(report.recommendation, fixes=[])
    )
    following = of_report(report).next
    assert following is not None and following.command == report.reproduce[0]
    without = "torchdoctor run --budget 300s --no-fixes -- python t.py"
    report = dataclasses.replace(report, interrupted=False, reproduce=[without])
    following = of_report(report).next
    assert following is not None
    assert following.command == without.replace(" --no-fixes", "")


def test_refused_fixes_are_grouped_by_reason_in_files_alone() -> None:
    report = refused_heavy()
    refused = {trial.fixes.only for trial in report.trials if trial.verdict == "refused"}
    outline = json.loads(encode(report))
    reasons = [group["reason"] for group in outline["refused"]]
    assert {fix for group in outline["refused"] for fix in group["fixes"]} == refused
    assert not any(trial["verdict"] == "refused" for trial in outline["trials"])
    assert len(reasons) < len(refused)
    read = decode_report(encode(report))
    assert {t.fixes.only for t in read.trials if t.verdict == "refused"} == refused
    assert read.refused == []


def test_a_status_tells_the_diagnosis_before_the_report(tmp_path) -> None:
    kept = status.StatusFile(tmp_path)
    kept.update(ProgressEvent(phase="observe", message="It runs", budget_s=300.0))
    assert status.read_status(tmp_path).state == "running"
    kept.diagnosed(loader_bound())
    kept.update(ProgressEvent(phase="trials", message="A pair runs", budget_s=300.0))
    now = status.read_status(tmp_path)
    assert (now.message, now.summary.bottleneck) == ("A pair runs", "data_loader")
    assert now.summary.next is not None and "--status" in now.summary.next.command
    kept.ended(loader_bound())
    now = status.read_status(tmp_path)
    assert now.state == "ended" and now.summary.recommendation is not None


def test_a_run_that_failed_or_went_away_is_not_said_to_go_on(tmp_path) -> None:
    error = UsageError("The disk is full.")
    with pytest.raises(UsageError), status.StatusFile(tmp_path):
        raise error
    failed = status.read_status(tmp_path)
    assert (failed.state, failed.summary.sentence) == ("failed", str(error))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / "status.json").write_text(status.as_json(status.begun(tmp_path, gone.pid)))
    last_words = "There was no memory."
    (tmp_path / "run.log").write_text(f"torchdoctor: {last_words}\n\n")
    now = status.read_status(tmp_path)
    assert (now.state, now.summary.sentence) == ("gone", last_words)


def test_the_command_shows_a_status(tmp_path) -> None:
    status.StatusFile(tmp_path).diagnosed(loader_bound())
    printed = torchdoctor("report", "--status", str(tmp_path), "--format", "json").stdout
    assert json.loads(printed)["summary"]["bottleneck"] == "data_loader"
    assert torchdoctor("report", "--status", cwd=tmp_path).returncode == 2
    (tmp_path / "status.json").write_text("{")
    assert torchdoctor("report", "--status", str(tmp_path)).returncode == 2


@pytest.mark.parametrize("sample", ["loader_bound", "nothing_found"])
def test_the_exit_code_says_if_a_fix_is_recommended_where_asked(sample: str, tmp_path) -> None:
    write_record(SAMPLES[sample](), tmp_path / "report.json")
    path = str(tmp_path / "report.json")
    assert torchdoctor("report", path).returncode == 0
    wanted = 10 if SAMPLES[sample]().recommendation.fixes else 0
    assert torchdoctor("report", path, "--exit-code").returncode == wanted


WRONG = [
    ["run", "--budgt", "3", "train.py"],
    ["rnu"],
    ["run"],
    ["run", "--steps", "2", "train.py"],
    ["explain", "a", "b"],
    ["report", "--format", "pdf"],
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_usage_error_is_one_line(arguments: list[str]) -> None:
    ended = torchdoctor(*arguments, COLUMNS="300")
    assert ended.returncode == 2 and not ended.stdout
    assert ended.stderr.startswith("torchdoctor: ") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--timeout", "never"],
        ["--network", "maybe"],
        ["--fixes", "loader-worker"],
        ["--from", "/nowhere"],
        ["--step-on", "moon"],
        ["--on", "moon"],
        ["--nodes", "2"],
        ["--cost-per-hour", "2"],
    ],
    ids=" ".join,
)
def test_a_detached_run_that_cannot_begin_is_refused_at_once(tmp_path, options: list[str]) -> None:
    """It returned a folder and exit code 0, and the mistake was told there alone."""
    (tmp_path / "t.py").write_text("")
    ended = torchdoctor("run", "--detach", *options, "t.py", cwd=tmp_path)
    assert ended.returncode == 2 and not ended.stdout and ended.stderr.count("\n") == 1
    assert not (tmp_path / "torchdoctor-runs").exists()


def test_the_status_of_a_failed_program_says_what_it_died_of(tmp_path) -> None:
    """It ended with "Its own output ends with:", and an agent read no more."""
    for folder, output, died_of in (
        ("raised", "Traceback (most recent call last):\n  at it\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("left", "no GPU here\n", "no GPU here"),
    ):
        (tmp_path / folder).mkdir()
        failed = ProgramFailure(exit_code=1, steps=0, output_tail=output)
        with pytest.raises(ProgramFailed), status.StatusFile(tmp_path / folder):
            raise program_failed(failed)
        sentence = status.read_status(tmp_path / folder).summary.sentence
        assert sentence.endswith(died_of) and "\n" not in sentence


@pytest.mark.slow
def test_a_detached_run_returns_with_its_folder_and_goes_on(tmp_path) -> None:
    (tmp_path / "t.py").write_text("import torch\nraise SystemExit(3)\n")
    command = [sys.executable, "-m", "torchdoctor", "run", "--detach", "--format", "json", "t.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = json.loads(ended.stdout)
    deadline = time.monotonic() + 300
    while (now := status.read_status(tmp_path / printed["run_folder"])).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert now.state == "failed" and now.summary.sentence
    assert Path(now.run_folder).samefile(printed["run_folder"])
