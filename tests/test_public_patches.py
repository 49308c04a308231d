"""The benchmark that compares patches of public scripts with the fixes, on a small repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import public_patches  # noqa: E402
from public_patches import Row, applies, judged, overlap  # noqa: E402

BEFORE = "x = 1\ny = 2\n"
DIFF = "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n-x = 1\n+x = 2\n y = 2\n"
ROW = Row(name="tiny", folder="tiny", command="train.py", fix="fused-optimizer")


def report(folder: Path, patch_trial: dict | None, verdict: str = "faster") -> dict:
    one = {"estimate": 1.5, "low": 1.4, "high": 1.6}
    return {
        "workload": {"cwd": str(folder)},
        "trials": [{"fixes": {"fused-optimizer": {}}, "verdict": verdict, "speedup": one}],
        "recommendation": {"speedup": one, "patch_trial": patch_trial},
    }


def test_a_diff_applies_once_and_leaves_what_parses(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEFORE)
    assert applies(DIFF, tmp_path)
    assert (tmp_path / "train.py").read_text() == BEFORE, "only a copy is changed"
    assert not applies(DIFF.replace("+x = 2", "+x = ("), tmp_path)
    (tmp_path / "train.py").write_text("x = 3\ny = 2\n")
    assert not applies(DIFF, tmp_path)


def test_what_was_measured_is_compared_and_what_is_missing_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\ny = 2\n")
    same = {"speedup": {"estimate": 1.45, "low": 1.35, "high": 1.55}, "reason": None}
    other = {"speedup": {"estimate": 1.0, "low": 0.9, "high": 1.1}, "reason": None}
    found = judged(ROW, report(tmp_path, same), DIFF, "")
    assert (found.applies, found.agree, found.said) == (True, True, "")
    assert judged(ROW, report(tmp_path, other), DIFF, "").agree is False
    found = judged(ROW, report(tmp_path, None), DIFF, "")
    assert found.agree is None and "not run" in found.said
    found = judged(ROW, report(tmp_path, same), "", "To be changed by hand")
    assert found.applies is None and "by hand" in found.said
    assert overlap(None, same["speedup"]) is None


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_patch_that_the_run_did_not_measure_is_measured_by_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "train.py").write_text(BEFORE)
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "as it is")
    run, gated = public_patches._run, []

    def gate(command: list[str], folder: Path, *more: object, **named: object) -> object:
        if command[0] == "git":
            return run(command, folder, *more, **named)
        gated.append((folder / "train.py").read_text())
        ratio = {"estimate": 0.5, "low": 0.4, "high": 0.8}
        report = {"metrics": [{"name": "step_time", "ratio": ratio}]}
        output = Path(command[command.index("--output") + 1])
        output.mkdir()
        (output / "gate.json").write_text(json.dumps(report))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(public_patches, "_run", gate)
    speedup, reason = public_patches.by_gate(DIFF, clone, clone, ["train.py"], "50s", {})
    assert speedup == {"estimate": 2.0, "low": 1.25, "high": 2.5} and reason == ""
    assert gated == [BEFORE.replace("x = 1", "x = 2")], "the patched program is measured"
    assert (clone / "train.py").read_text() == BEFORE, "only a copy is changed"
    speedup, reason = public_patches.by_gate(DIFF, clone, tmp_path, ["train.py"], "45s", {})
    assert speedup is None and reason and len(gated) == 1, "it was not started in the repository"


def test_what_is_not_there_is_skipped_and_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/public_patches.py", str(tmp_path), "--only", "dcgan"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    assert [line["said"] for line in lines] == ["skipped: no examples/dcgan/main.py"] * 3


def test_rows_have_names_of_fixes() -> None:
    known = {path.stem.replace("_", "-") for path in (ROOT / "torchdoctor/fixes").glob("*.py")}
    assert {row.fix for row in public_patches.TABLE} <= known
