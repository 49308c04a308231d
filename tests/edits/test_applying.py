"""`torchdoctor patch --apply` changes the user's files as measured, and --undo takes it back."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import pytest

from torchdoctor.edits import Edit, KeywordEdit, StatementEdit, applying
from torchdoctor.edits.diff import unified_diff
from torchdoctor.schema import (
    Diagnosis,
    Environment,
    Interval,
    PatchTrial,
    Recommendation,
    RecommendedFix,
    RejectedPatch,
    Report,
    WorkloadRecord,
    fact,
)
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import read_report, write_record

SCRIPT = "import torch\n\nloader = DataLoader(d)\n# the end\n"


def edits_of(script: Path) -> list[Edit]:
    text = script.read_bytes().decode()
    line = text[: text.index("DataLoader(")].count("\n") + 1
    workers = KeywordEdit(
        file=str(script), line=line, callee="DataLoader", keyword="num_workers", value="2"
    )
    return [workers, StatementEdit(file=str(script), statement="torch.set_num_threads(1)")]


def measured(
    folder: Path, name: str = "train.py", text: str = SCRIPT, **recommendation: Any
) -> Path:
    """A script as it was when it was measured; its run folder, with the report, is returned."""
    (folder / name).write_bytes(text.encode())
    edits = edits_of(folder / name)
    alone = RecommendedFix(fix="cpu-threads", edit=unified_diff(edits[1:], folder))
    report = Report(
        workload=WorkloadRecord(command=[name], cwd=str(folder)),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="data_loader"),
        recommendation=Recommendation(
            fixes=[RecommendedFix(fix="loader-workers"), alone],
            patch=unified_diff(edits, folder),
            patch_folder=str(folder),
            patch_fixes=["loader-workers", "cpu-threads"],
            **recommendation,
        ),
    )
    run = folder / "torchdoctor-runs" / "run"
    run.mkdir(parents=True, exist_ok=True)
    write_record(report, run / "report.json")
    return run


def patch(folder: Path, *options: str) -> subprocess.CompletedProcess:
    return commands.torchdoctor("patch", *options, cwd=folder)


def refused(folder: Path, *options: str) -> str:
    """What is said where nothing is changed and nothing printed for `git apply`."""
    result = patch(folder, *options)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    return result.stderr


def options_in(said: str) -> set[str]:
    return set(re.findall(r"--[a-z]+", said))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", SCRIPT),
        ("my träin.py", SCRIPT.replace("\n", "\r\n")),
        ('a"b.py', SCRIPT.rstrip("\n") + " \f\u2028"),
        ("bom.py", "\ufeff" + SCRIPT),
        ("short.py", "import torch\nDataLoader(d)"),
    ],
)
def test_the_newest_runs_patch_is_applied_as_git_would_and_taken_back(name, text, tmp_path) -> None:
    measured(tmp_path, name, text)
    script = tmp_path / name
    result = patch(tmp_path, "--apply")
    assert result.returncode == 0, result.stderr
    ours = script.read_bytes()
    assert b"num_workers=2" in ours and b"set_num_threads(1)" in ours
    assert f"Changed {script}" in result.stderr and "--undo" in result.stderr
    assert "git apply" not in result.stderr
    script.write_bytes(text.encode())
    subprocess.run(["git", "apply"], input=result.stdout.encode(), cwd=tmp_path, check=True)
    assert script.read_bytes() == ours
    script.chmod(0o750)  # git sets it anew
    result = patch(tmp_path, "--undo")
    assert result.returncode == 0, result.stderr
    assert script.read_bytes() == text.encode() and script.stat().st_mode & 0o777 == 0o750
    assert options_in(refused(tmp_path, "--undo")) == {"--list"}, "other runs may have one"


def git(folder: Path, *words: str) -> None:
    named = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True)


def test_json_of_an_applied_patch_leads_to_its_check_and_not_to_its_undoing(tmp_path) -> None:
    """`next` was `--undo` then: who followed it had nothing changed in the end."""
    measured(tmp_path)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-qm", "first")
    shown = json.loads(patch(tmp_path, "--fixes", "cpu-threads", "--format", "json").stdout)
    apply = shlex.split(shown["summary"]["next"]["command"])
    assert apply[-3:] == ["--fixes", "cpu-threads", "--apply"], "it applied all that is recommended"
    applied = json.loads(patch(tmp_path, *apply[2:]).stdout)
    assert (tmp_path / "train.py").read_text().count("num_workers") == 0
    following = applied["summary"]["next"]
    assert following == applied["check"]
    checked = shlex.split(following["command"])
    assert checked[:2] == ["torchdoctor", "gate"] and checked[-2:] == ["--", "train.py"]
    assert checked[checked.index("--against") + 1] == "HEAD"
    assert applied["undo"].endswith("--undo")
    assert patch(tmp_path, *shlex.split(applied["undo"])[2:]).returncode == 0
    assert (tmp_path / "train.py").read_text() == SCRIPT


def test_json_of_a_proven_patch_that_is_applied_leaves_nothing_to_do(tmp_path) -> None:
    interval = Interval(estimate=2.0, low=1.9, high=2.1)
    measured(tmp_path, patch_trial=PatchTrial(speedup=interval, numerics="identical", pairs=6))
    applied = json.loads(patch(tmp_path, "--apply", "--format", "json").stdout)
    assert applied["changed"] and applied["summary"]["next"] is None
    assert applied["check"] is None, "two launches and no commit are nothing to compare with"


def test_a_file_with_uncommitted_changes_is_left_alone_without_force(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text("committed = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-qm", "first")
    measured(tmp_path)
    said = refused(tmp_path, "--apply")
    assert str(script) in said and options_in(said) == {"--force"}
    assert script.read_text() == SCRIPT
    git(tmp_path, "commit", "-qam", "second")
    assert patch(tmp_path, "--apply").returncode == 0
    assert options_in(refused(tmp_path, "--apply", "--force")) == {"--undo"}
    later = tmp_path / "torchdoctor-runs" / "later"  # of the patched program
    later.mkdir()
    shutil.copy(later.with_name("run") / "report.json", later)
    assert patch(tmp_path, "--undo").returncode == 0
    shutil.rmtree(later)
    script.write_text(SCRIPT + "more = 1\n")
    assert patch(tmp_path, "--apply", "--force").returncode == 0
    assert "num_workers=2" in script.read_text() and "more = 1" in script.read_text()
    assert patch(tmp_path, "--undo").returncode == 0
    assert script.read_text() == SCRIPT + "more = 1\n"


def test_a_file_that_was_changed_since_the_run_is_left_alone_without_force(tmp_path) -> None:
    measured(tmp_path)
    script = tmp_path / "train.py"
    changed = "first = 0\n\n" + SCRIPT.replace("the end", "another end")
    script.write_text(changed)
    said = refused(tmp_path, "--apply")
    assert str(script) in said and options_in(said) == {"--force"}
    said = refused(tmp_path, "--apply", "--force")
    assert "torchdoctor run" in said and not options_in(said), "its context has gone"
    assert script.read_text() == changed
    script.write_text(SCRIPT + SCRIPT)
    assert "torchdoctor run" in refused(tmp_path, "--apply", "--force"), "it fits more than once"
    assert script.read_text() == SCRIPT + SCRIPT
    script.write_text("first = 0\n\n" + SCRIPT)
    assert patch(tmp_path, "--apply", "--force").returncode == 0
    assert script.read_text().startswith("first = 0\n")
    script.write_text(script.read_text() + "later = 1\n")
    assert str(script) in refused(tmp_path, "--undo")
    assert script.read_text().endswith("later = 1\n")


def test_one_fix_alone_is_applied_and_taken_back(tmp_path) -> None:
    measured(tmp_path)
    assert patch(tmp_path, "--apply", "--fixes", "cpu-threads").returncode == 0
    text = (tmp_path / "train.py").read_text()
    assert "set_num_threads" in text and "num_workers" not in text
    said = refused(tmp_path, "--apply", "--fixes", "cpu-threads", "--force")
    assert options_in(said) == {"--undo"}
    assert patch(tmp_path, "--undo").returncode == 0
    assert (tmp_path / "train.py").read_text() == SCRIPT


def test_without_a_patch_nothing_is_changed_and_that_is_said(tmp_path) -> None:
    run = measured(tmp_path)
    report = Report(
        workload=WorkloadRecord(command=["train.py"], cwd=str(tmp_path)),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="cpu"),
    )
    write_record(report, run / "report.json")
    said = refused(tmp_path, "--apply")
    assert said and "git" not in said
    refused(tmp_path, "--apply", "--undo")
    measured(tmp_path)
    (tmp_path / "train.py").unlink()
    assert refused(tmp_path, "--apply").count(str(tmp_path / "train.py")) == 1


def test_permissions_stay_and_a_file_that_cannot_be_written_leaves_all_as_it_was(tmp_path) -> None:
    measured(tmp_path)
    script = tmp_path / "train.py"
    script.chmod(0o777)
    assert patch(tmp_path, "--apply").returncode == 0
    assert script.stat().st_mode & 0o777 == 0o777
    script.write_bytes(b"\xff")
    assert str(script) in refused(tmp_path, "--undo")
    assert script.read_bytes() == b"\xff"
    second = applying.FileChange(before="", after="import this")
    (tmp_path / "no-folder").write_text("")
    script.write_text(SCRIPT)
    made = {
        str(script): applying.FileChange(before=SCRIPT, after="changed"),
        str(tmp_path / "no-folder" / "second.py"): second,
    }
    record = tmp_path / "record.json"
    with pytest.raises(UsageError):
        applying.apply(made, record)
    assert script.read_text() == SCRIPT and not record.exists()


def test_a_copy_of_a_project_does_not_change_the_one_that_was_measured(tmp_path) -> None:
    run = measured(tmp_path)
    elsewhere = tmp_path.parent / f"{tmp_path.name}-copy"
    shutil.copytree(tmp_path, elsewhere)
    said = refused(elsewhere, "--apply", str(elsewhere / run.relative_to(tmp_path)))
    assert str(tmp_path) in re.split(r"[\s:]+", said), "where it can be applied"
    for folder in (tmp_path, elsewhere):
        assert (folder / "train.py").read_text() == SCRIPT


def test_a_patch_that_git_took_away_is_applied_again(tmp_path: Path) -> None:
    """ "A patch of this run is applied", said --apply, and --undo: "not as the patch left it"."""
    run, script = measured(tmp_path), tmp_path / "train.py"
    script.write_text(f"{SCRIPT}# uncommitted\n")
    assert patch(tmp_path, "--apply", "--force").returncode == 0
    assert f"patch {run.relative_to(tmp_path)} --undo" in refused(tmp_path, "--apply")
    script.write_text(SCRIPT)  # git checkout train.py
    assert options_in(refused(tmp_path, "--undo")) == {"--apply"}, "which makes it again"
    assert patch(tmp_path, "--apply").returncode == 0 and "num_workers=2" in script.read_text()
    script.unlink()
    assert str(script) in refused(tmp_path, "--undo"), "it is to be put back"
    assert not script.exists()
    script.write_text(SCRIPT)
    assert patch(tmp_path, "--apply").returncode == 0
    assert patch(tmp_path, "--undo").returncode == 0 and script.read_text() == SCRIPT


GAIN = Interval(estimate=1.7, low=1.56, high=1.99)
BOTH: dict[str, dict[str, Any]] = {"loader-workers": {}, "cpu-threads": {}}


def test_a_patch_that_was_cut_off_by_a_kill_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written first, so it knows what a killed process had changed."""
    driver = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from torchdoctor.edits import applying\n"
        "replace = Path.replace\n"
        "def dies_at_the_second(source, target):\n"
        "    if target.name == 'two.py':\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return replace(source, target)\n"
        "Path.replace = dies_at_the_second\n"
        "made = {sys.argv[1] + '/' + x: applying.FileChange(before='pass\\n', after='1\\n')\n"
        "        for x in ('one.py', 'two.py')}\n"
        "applying.apply(made, Path(sys.argv[1], 'run', applying.APPLIED_NAME))\n"
    )
    scripts = [tmp_path / name for name in ("one.py", "two.py")]
    for script in scripts:
        script.write_text("pass\n")
    (tmp_path / "run").mkdir()
    killed = subprocess.run([sys.executable, "-c", driver, str(tmp_path)], check=False)
    assert killed.returncode != 0
    assert [script.read_text() for script in scripts] == ["1\n", "pass\n"]
    record = tmp_path / "run" / applying.APPLIED_NAME
    monkeypatch.chdir(tmp_path)
    assert applying.undo(record) == [str(scripts[0])]
    assert [script.read_text() for script in scripts] == ["pass\n", "pass\n"]
    assert {x.name for x in tmp_path.iterdir()} == {"one.py", "two.py", "run"}
    assert list((tmp_path / "run").iterdir()) == []


def test_what_was_proven_is_said_before_a_file_is_changed(tmp_path: Path) -> None:
    trial = PatchTrial(speedup=GAIN, numerics="identical", pairs=3)
    measured(tmp_path, speedup=GAIN, pairs=3, patch_trial=trial, handed_out="patch")
    result = patch(tmp_path, "--apply")
    assert result.returncode == 0
    said, changed = result.stderr.index("1.70x faster (1.56-1.99)"), result.stderr.index("Changed")
    assert said < changed
    assert "1.70x faster" in patch(tmp_path).stderr, "the diff alone says it as well"
    alone = patch(tmp_path, "--fixes", "cpu-threads")
    assert "not tried" in alone.stderr and "faster" not in alone.stderr


@pytest.mark.parametrize("problem", ["failed", "slower", "changes-training"])
def test_a_rejected_patch_is_refused_without_force(tmp_path: Path, problem: str) -> None:
    rejected = RejectedPatch(
        fixes={"cpu-threads": {}}, problem=problem, detail="NameError: loader", pairs=3
    )
    measured(tmp_path, speedup=GAIN, pairs=3, rejected_patches=[rejected])
    said = refused(tmp_path, "--apply", "--fixes", "cpu-threads")
    assert "--force" in said and len(said.strip().splitlines()) == 1
    assert (tmp_path / "train.py").read_text() == SCRIPT
    printed = patch(tmp_path, "--fixes", "cpu-threads")
    assert printed.returncode == 0 and printed.stdout
    assert "cpu-threads" in printed.stderr.splitlines()[0], "printing it says the same"
    assert patch(tmp_path, "--apply", "--fixes", "cpu-threads", "--force").returncode == 0
    assert (tmp_path / "train.py").read_text() != SCRIPT


def test_a_patch_that_failed_in_an_older_report_is_refused(tmp_path: Path) -> None:
    """`UnboundLocalError: model` stood in the report, and --apply wrote it into the script."""
    trial = PatchTrial(reason="UnboundLocalError: model", numerics="not-comparable")
    run = measured(tmp_path, speedup=GAIN, pairs=3, patch_trial=trial)
    report = json.loads((run / "report.json").read_text())
    del report["recommendation"]["patch_trial"]["why"]
    (run / "report.json").write_text(json.dumps(report | {"schema_version": "2.0"}))
    assert "UnboundLocalError: model" in refused(tmp_path, "--apply")
    assert (tmp_path / "train.py").read_text() == SCRIPT


def test_fixes_to_change_by_hand_have_nothing_to_apply(tmp_path: Path) -> None:
    why = fact("no-edit-for", fixes=["loader-workers"])
    rejected = RejectedPatch(fixes=BOTH, problem="lacks-edit", why=why)
    run = measured(tmp_path, speedup=GAIN, pairs=3)
    report = read_report(run)
    recommended = replace(
        report.recommendation,
        patch=None, patch_fixes=[], handed_out="by-hand", rejected_patches=[rejected],
    )  # fmt: skip
    write_record(replace(report, recommendation=recommended), run / "report.json")
    said = refused(tmp_path, "--apply")
    mentions = {fix: said.count(fix) for fix in BOTH}
    assert mentions["loader-workers"] == mentions["cpu-threads"] + 1, "the one without an edit"
    assert (tmp_path / "train.py").read_text() == SCRIPT
