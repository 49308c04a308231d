"""`torchdoctor run` of a program whose files lie on a real slow mount."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slow_mount import missing, slow_mount
from test_fast_storage import PROGRAM

TRAINS = PROGRAM.replace("if __name__", "EPOCHS = 200\nif __name__").replace(
    "    for x, in_memory in", "    for _ in range(EPOCHS):\n     for x, in_memory in"
)


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_slow_storage_is_found_and_copies_are_tried(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(200):
        (tmp_path / f"data/{number}").write_bytes(os.urandom(20_000))
    (tmp_path / "train.py").write_text(TRAINS)
    with slow_mount(tmp_path / "data", bytes_per_s=2_000_000) as folder:
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "torchdoctor.cli.front", "run", "--budget", "60s"),
                *("--fixes", "fast-storage", "--output", str(tmp_path / "out")),
                *("train.py", str(folder), "0"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=580,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    found = {one["check"]: one for one in report["diagnosis"]["findings"]}
    assert "slow-storage" in found, list(found)
    evidence = " ".join(fact["sentence"] for fact in found["slow-storage"]["evidence"])
    assert "FUSE" in evidence
    assert str(folder) in evidence
    tried = [one for one in report["trials"] if "fast-storage" in one["fixes"]]
    assert any(one["verdict"] not in ("failed", "refused") for one in tried), ran.stdout
    assert not list(Path("/dev/shm").glob("torchdoctor-staged_*"))
    assert not list((tmp_path / "out").glob("**/staged"))
