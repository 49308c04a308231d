"""`run --from`: what a watched run of the same program tells, and when it is not used."""

import subprocess
import sys
from pathlib import Path

import pytest
from slow_loader import SLOW_LOADER

from torchdoctor.schema.record_files import read_recording, read_report


@pytest.mark.slow
def test_a_watched_run_spares_the_next_run_from_observing_it_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLOW_LOADER.replace("100000", "2400"))

    def torchdoctor(*words: str) -> None:
        command = [sys.executable, "-m", "torchdoctor", *words, "train.py"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    run = ("run", "--no-fixes", "--quiet", "--from", "watched", "--budget", "60s", "--output")
    torchdoctor("watch", "--output", "watched")
    torchdoctor(*run, "again")
    recording = read_recording(tmp_path / "again" / "recording.json")
    assert recording.steps is not None and 200 < recording.steps.steps < 300
    assert recording.steps.data_wait_s > 0.5 * recording.steps.mean_s
    report = read_report(tmp_path / "again")
    assert report.diagnosis.bottleneck == "data_loader"
    assert any("those of 2" in doubt and "watched run" in doubt for doubt in report.doubts)
    script.write_text(script.read_text() + "\n")
    torchdoctor(*run, "changed")
    changed = [doubt for doubt in read_report(tmp_path / "changed").doubts if "watched" in doubt]
    assert len(changed) == 1 and "train.py has changed since" in changed[0]
