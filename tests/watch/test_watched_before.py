"""`run --from`: what a watched run of the same program tells, and when it is not used."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from light_torch import LIGHT

from torchdoctor.launch.workload import workload_of
from torchdoctor.schema.record_files import read_recording, read_report
from torchdoctor.watch import earlier
from torchdoctor.watch.recording import read_run

# A batch sleeps once: woken late on a busy machine, its step takes hardly longer than another.
LOADS = f"""
import time, torch
{LIGHT}
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1040
    def __getitems__(self, indices):
        time.sleep(0.06)
        return [torch.full((8,), float(index % 7)) for index in indices]

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(Slow(), batch_size=8):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass
class Observed:
    """What is observed anew, as far as it is looked at where a watched run is not used."""

    doubts: list[str] = field(default_factory=list)


@pytest.mark.slow
def test_a_watched_run_spares_the_next_run_from_observing_it_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADS)

    def torchdoctor(*words: str) -> None:
        command = [sys.executable, "-m", "torchdoctor", *words, "train.py"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    torchdoctor("watch", "--output", "watched")
    run = ("run", "--no-fixes", "--quiet", "--from", "watched", "--budget", "60s")
    torchdoctor(*run, "--output", "again")
    recording = read_recording(tmp_path / "again" / "recording.json")
    assert recording.steps is not None and 80 < recording.steps.steps < 130
    assert recording.steps.data_wait_s > 0.5 * recording.steps.mean_s
    report = read_report(tmp_path / "again")
    assert report.diagnosis.bottleneck == "data_loader"
    told = f"those of {recording.steps.steps} steps of the watched run"
    assert any(told in doubt for doubt in report.doubts)

    script.write_text(script.read_text() + "\n")
    wanted: list[tuple[float, ...]] = []

    def observe(*enough_s: float) -> Any:
        wanted.append(enough_s)
        return Observed()

    changed = workload_of(["train.py"], cwd=str(tmp_path))
    whole = earlier.shortened(read_run(tmp_path / "watched"), changed, observe)
    assert wanted == [()], "as long as any other program"
    (doubt,) = whole.doubts
    assert doubt.fact == "watched-run-file-changed"
    assert doubt.values["path"].endswith("train.py")
