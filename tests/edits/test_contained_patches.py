"""A report from elsewhere changes no file but the sources of the project that it is applied in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import commands
import pytest

from torchdoctor.edits.diff import blob_id
from torchdoctor.schema import (
    Diagnosis,
    Environment,
    Recommendation,
    RecommendedFix,
    Report,
    WorkloadRecord,
)
from torchdoctor.schema.record_files import read_report, write_record

ROOT = Path(__file__).parents[2]
BEFORE, AFTER = "import torch\n", "import torch\nimport this\n"


def change_of(name: str, text: str = BEFORE) -> str:
    """A diff that adds a line to a file; `name` as it stands behind "+++ "."""
    ids = f"{blob_id(text)}..{blob_id(text + 'import this' + chr(10))}"
    lines = [f" {line}\n" for line in text.splitlines()]
    head = f"diff --git {name} {name}\nindex {ids}\n--- {name}\n+++ {name}\n"
    return f"{head}@@ -1,{len(lines)} +1,{len(lines) + 1} @@\n{''.join(lines)}+import this\n"


class Place:
    """A project with a report from elsewhere, and a file beside it that is not the project's."""

    def __init__(self, folder: Path) -> None:
        self.project, self.outside = folder / "project", folder / "outside"
        self.run = self.project / "torchdoctor-runs" / "run"
        self.victim, self.script = self.outside / "victim.py", self.project / "train.py"
        for file in (self.victim, self.script):
            file.parent.mkdir(parents=True)
            file.write_text(BEFORE)
        self.run.mkdir(parents=True)

    def report(self, diff: str, folder: Path | str | None = None) -> None:
        """Put a report with this diff into the run's folder."""
        there = str(self.project if folder is None else folder)
        report = Report(
            workload=WorkloadRecord(command=["train.py"], cwd=there),
            environment=Environment(),
            diagnosis=Diagnosis(bottleneck="cpu"),
            recommendation=Recommendation(
                fixes=[RecommendedFix(fix="cpu-threads")],
                patch=diff, patch_folder=there, patch_fixes=["cpu-threads"],
            ),
        )  # fmt: skip
        write_record(report, self.run / "report.json")

    def record(self, path: Path | str, before: str = AFTER, after: str = BEFORE) -> None:
        """Put a record into the run's folder, as if a patch had been applied."""
        self.report(change_of("b/train.py"))
        applied = {str(path): {"before": before, "after": after}}
        (self.run / "applied-patch.json").write_text(json.dumps(applied))

    def patch(self, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        return commands.torchdoctor("patch", *options, str(self.run), cwd=cwd or self.project)

    def refused(self, *options: str, cwd: Path | None = None) -> str:
        """Check that nothing is changed, which one sentence says; return it."""
        files = (self.victim, self.script)
        held = [file.read_bytes() for file in files]
        result = self.patch(*options, cwd=cwd)
        assert result.returncode == 2, result.stderr
        assert [file.read_bytes() for file in files] == held
        assert "Traceback" not in result.stderr and "defect" not in result.stderr
        return result.stderr.strip().splitlines()[-1]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def linked(place: Place) -> str:
    (place.project / "lib").symlink_to(place.outside, target_is_directory=True)
    return "b/lib/victim.py"


def link_to_file(place: Place) -> str:
    (place.project / "linked.py").symlink_to(place.victim)
    return "b/linked.py"


NAMES: dict[str, Callable[[Place], str]] = {
    "absolute": lambda place: f"b/{place.victim}",
    "parent": lambda place: "b/../outside/victim.py",
    "parent-behind-a-folder": lambda place: "b/torchdoctor-runs/../../outside/victim.py",
    "quoted": lambda place: '"b/\\056./outside/victim.py"',
    "linked-folder": linked,
    "linked-file": link_to_file,
}


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["plain", "force"])
@pytest.mark.parametrize("made", NAMES.values(), ids=NAMES.keys())
def test_a_name_that_leads_out_of_the_project_is_refused(place: Place, made, force) -> None:
    name = made(place)
    place.report(change_of(name))
    place.refused("--apply", *force)
    place.report(change_of("b/train.py") + change_of(name))  # of which one is fine
    place.refused("--apply", *force)


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["plain", "force"])
def test_a_folder_above_the_project_does_not_widen_what_is_changed(place: Place, force) -> None:
    for folder in ("/", place.project.parent, place.outside, "..", "../outside"):
        top = Path(place.project, folder).resolve()
        place.report(change_of(f"b/{place.victim.relative_to(top)}"), folder)
        place.refused("--apply", *force)


def test_the_printed_diff_of_such_a_report_changes_nothing(place: Place) -> None:
    place.report(change_of("b/../outside/victim.py"))
    assert place.patch().returncode == 0 and place.victim.read_text() == BEFORE


@pytest.mark.parametrize(
    "name", [".bashrc", "notes.txt", "setup.cfg", ".git/hooks/pre-commit", ".git/x.py", "run.sh"]
)
def test_only_python_sources_are_changed(place: Place, name: str) -> None:
    file = place.project / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(BEFORE)
    place.report(change_of(f"b/{name}"))
    place.refused("--apply", "--force")
    assert file.read_text() == BEFORE
    place.record(file)
    place.refused("--undo")
    assert file.read_text() == BEFORE


def test_a_script_without_a_suffix_is_changed_if_it_is_python(place: Place) -> None:
    script = place.project / "train"
    script.write_text(BEFORE)
    place.report(change_of("b/train"))
    assert place.patch("--apply").returncode == 0 and script.read_text() == AFTER
    assert place.patch("--undo").returncode == 0 and script.read_text() == BEFORE
    script.write_text("all:\n\tmake it\n")
    place.report(change_of("b/train", script.read_text()))
    place.refused("--apply")


def test_undo_is_held_to_the_same(place: Place) -> None:
    place.record(place.victim)
    assert str(place.victim) in place.refused("--undo")
    place.record("../outside/victim.py")
    place.refused("--undo")
    linked(place)
    place.record(place.project / "lib" / "victim.py")
    place.refused("--undo", "--force")
    place.record(place.script)
    assert place.patch("--undo", cwd=place.outside).returncode == 2
    assert place.patch("--undo").returncode == 0 and place.script.read_text() == AFTER


def test_a_record_that_is_a_link_or_a_pipe_is_neither_read_nor_written(place: Place) -> None:
    place.record(place.script)
    record, kept = place.run / "applied-patch.json", place.outside / "kept.json"
    record.rename(kept)
    record.symlink_to(kept)
    held = kept.read_bytes()
    place.refused("--undo")
    place.refused("--apply")
    record.unlink()
    record.symlink_to(place.outside / "not-there-yet")
    place.refused("--apply")
    assert not (place.outside / "not-there-yet").exists() and kept.read_bytes() == held
    record.unlink()
    os.mkfifo(record)
    place.refused("--undo")
    (place.project / "pipe.py").unlink(missing_ok=True)
    os.mkfifo(place.project / "pipe.py")
    record.unlink()
    place.report(change_of("b/pipe.py"))
    place.refused("--apply")
    place.record(place.project / "pipe.py")
    place.refused("--undo")
    place.report(change_of("b/train.py"))
    assert place.patch("--apply").returncode == 0, "the record is of another file"


def test_in_a_subfolder_of_the_repository_the_report_of_it_is_applied(place: Place) -> None:
    subprocess.run(["git", "init", "-q"], cwd=place.project, check=True)
    below = place.project / "scripts"
    below.mkdir()
    place.report(change_of("b/train.py"))
    assert place.patch("--apply", cwd=below).returncode == 0
    assert place.script.read_text() == AFTER
    assert place.patch("--undo", cwd=below).returncode == 0
    assert place.patch("--apply", cwd=place.project.parent).returncode == 0, "and from above"
    assert place.patch("--undo", cwd=place.project.parent).returncode == 0


def test_a_link_within_the_project_stays_and_its_target_is_changed(place: Place) -> None:
    (place.project / "again.py").symlink_to("train.py")
    place.report(change_of("b/again.py"))
    assert place.patch("--apply").returncode == 0
    assert (place.project / "again.py").is_symlink() and place.script.read_text() == AFTER
    assert place.patch("--undo").returncode == 0 and place.script.read_text() == BEFORE
    place.report(change_of("b/train.py") + change_of("b/again.py"))
    assert "twice" in place.refused("--apply", "--force")


def test_a_file_with_further_names_is_left_alone(place: Place) -> None:
    """Replaced, it parted from its other name; written in place, a backup would change too."""
    os.link(place.script, place.outside / "again.py")
    place.report(change_of("b/train.py"))
    assert "hard links" in place.refused("--apply", "--force")
    assert place.script.stat().st_nlink == 2


@pytest.mark.parametrize(
    "diff",
    [
        "diff --git a b\n+++ b/\n@@ -1 +1 @@\n",
        'diff --git a b\n+++ "b/\\x"\n@@ -1 +1 @@\n',
        'diff --git a b\n+++ "b/\\000train.py"\n@@ -1 +1 @@\n',
        'diff --git a b\n+++ "b/", "train.py"\n@@ -1 +1 @@\n',
        'diff --git a b\n+++ "b/tr\u00e4in.py"\n@@ -1 +1 @@\n',
        "diff --git a b\n+++ b/train.py\r\n@@ -1 +1 @@\n",
        f"diff --git a b\n+++ b/{'x' * 300}.py\n@@ -1 +1 @@\n",
        f"diff --git a b\n+++ b/{'x/' * 3000}y.py\n@@ -1 +1 @@\n",
        "diff --git a b\n+++ b/train.py\n@@ -1 +1 @@\n\\ No newline at end of file\n",
        f"diff --git a b\n+++ b/train.py\n@@ -{'9' * 5000} +1 @@\n-import torch\n",
        "diff --git a b\n+++ b/train.py/x.py\n@@ -1 +1 @@\n",
        "diff --git a b\n+++ b/.\n@@ -1 +1 @@\n",
    ],
    ids=range(12),
)
def test_a_damaged_diff_is_refused_in_one_sentence(place: Place, diff: str) -> None:
    place.report(diff)
    place.refused("--apply", "--force")


def test_a_name_that_no_record_can_hold_is_refused(place: Place) -> None:
    script = Path(os.fsdecode(os.fsencode(place.project) + b"/tr\xe4in.py"))
    script.write_text(BEFORE)
    place.report(change_of('"b/tr\\344in.py"'))
    place.refused("--apply")
    assert script.read_text() == BEFORE and not (place.run / "applied-patch.json").exists()


def test_a_fix_alone_is_held_to_the_same(place: Place) -> None:
    place.report(change_of("b/train.py"))
    report = read_report(place.run)
    edit = change_of(f"b/{place.victim}")
    alone = RecommendedFix(fix="cpu-threads", edit=edit, folder="/")
    write_record(
        replace(report, recommendation=replace(report.recommendation, fixes=[alone])),
        place.run / "report.json",
    )
    place.refused("--apply", "--fixes", "cpu-threads", "--force")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_the_owner_of_a_changed_file_stays(place: Place) -> None:
    os.chown(place.script, 1234, 2345)
    place.script.chmod(0o640)
    place.report(change_of("b/train.py"))
    assert place.patch("--apply").returncode == 0
    status = place.script.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 2345, 0o640)


def test_a_run_from_elsewhere_hangs_nothing(place: Place) -> None:
    os.mkfifo(place.run / "report.json")
    place.refused("--apply")
    listed = commands.torchdoctor("report", "--list", cwd=place.project)
    assert listed.returncode == 2 and "no run" in listed.stderr


def test_a_folder_that_is_gone_is_said_in_one_sentence(place: Place, tmp_path: Path) -> None:
    place.report(change_of("b/train.py"))
    gone = tmp_path / "gone"
    gone.mkdir()
    command = [sys.executable, "-m", "torchdoctor", "patch", str(place.run), "--apply"]
    shell = ["sh", "-c", 'rmdir "$0" && exec "$@"', str(gone), *command]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        shell, cwd=gone, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert result.returncode == 2 and "defect" not in result.stderr
    assert place.script.read_text() == BEFORE
