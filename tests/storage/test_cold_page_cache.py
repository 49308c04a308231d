"""A loader that reads what is not in the page cache yet, on real files of a real disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from observed_programs import observe, recorder_of
from partial_recordings import recording

from torchdoctor.checks import cold_page_cache
from torchdoctor.machine.storage import drop, storage_facts
from torchdoctor.observe.window import ProfilerWindow
from torchdoctor.probe.measure import page_cache
from torchdoctor.runs.notes import report_notes
from torchdoctor.schema import LaunchTiming, Recommendation
from torchdoctor.trials.outcome import TrialResults

PROGRAM = """
import sys, torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        with open(f"{sys.argv[1]}/{index}.bin", "rb") as file:
            return torch.tensor(list(file.read()[:4])).float()

if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x in DataLoader(Files(), batch_size=2, num_workers=int(sys.argv[2])):
            model(x).sum().backward()
            optimizer.step()
"""


def remarks(*of: Any) -> list[str]:
    return [remark.fact for remark in report_notes(*of)]


def _written(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())  # pages that are not on the disk yet cannot be dropped
    return path


def _dropped(path: Path) -> Path:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def _droppable(folder: Path) -> None:
    path = _dropped(_written(folder / "droppable.bin", 100_000))
    if page_cache.share_of(str(path)) != (0.0, 100_000):
        pytest.skip("the file system of the tests keeps its pages (tmpfs)")


@pytest.mark.parametrize("size", [4_000_000, 40_000_000])
def test_what_is_cached_of_a_file_is_seen_without_reading_it(tmp_path, size):
    _droppable(tmp_path)
    path = _written(tmp_path / "data.bin", size)
    assert page_cache.share_of(str(path)) == (1.0, size)
    _dropped(path)
    assert page_cache.share_of(str(path)) == (0.0, size)
    assert page_cache.share_of(str(path)) == (0.0, size), "looking has read it"
    with path.open("rb") as file:
        file.read(size // 2)
    # The kernel reads ahead, some megabytes at most.
    assert 0.4 < page_cache.share_of(str(path))[0] < (0.9 if size > 2e7 else 1.1)


def test_of_another_users_file_a_page_is_asked_for_instead(tmp_path):
    _droppable(tmp_path)
    path = _written(tmp_path / "data.bin", 100_000)
    with path.open("rb") as file:
        assert page_cache._looked_at(file.fileno(), 100_000) == 1.0
        _dropped(path)
        assert page_cache._looked_at(file.fileno(), 100_000) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_cold_files_are_told_from_warm_ones_before_they_are_read(tmp_path, probed, workers):
    _droppable(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    paths = [_written(data / f"{number}.bin", 100_000) for number in range(8)]
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)

    def seen(name: str) -> float:
        folder = tmp_path / name
        folder.mkdir()
        arguments = [str(script), str(data), str(workers)]
        ran = probed(arguments, cwd=tmp_path, folder=folder, watch_files=True, after="continue")
        assert ran.returncode == 0, ran.stderr
        assert ran.said() == []
        (mount,) = storage_facts(ran.channel, folder).mounts
        assert mount.files == 8
        assert mount.looked_at >= 1
        return mount.cached_at_first

    for path in paths:
        _dropped(path)
    # The launch itself warms them, and its second epoch too reads warm ones.
    assert seen("cold") == 0.0
    assert seen("warm") == 1.0


def test_listed_files_are_dropped_and_what_is_gone_is_left_out(tmp_path):
    _droppable(tmp_path)
    path = _written(tmp_path / "a b.bin", 100_000)
    listed = tmp_path / "files-read.txt"
    listed.write_bytes(os.fsencode(f"{tmp_path}/none\n{path}\n"))
    drop(listed)
    assert page_cache.share_of(str(path)) == (0.0, 100_000)
    drop(tmp_path / "no-list")


WARMS = """
import time, torch
from torch.utils.data import DataLoader, Dataset
from torchdoctor.probe.measure import page_cache

with open("DATA.log", "a") as log:
    log.write("%s\\n" % page_cache.share_of("DATA")[0])

class Files(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.01)
        with open("DATA", "rb") as file:
            return torch.tensor(list(file.read()[:4])).float()

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Files(), batch_size=2):
    model(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_where_data_stay_cold_each_later_launch_begins_with_cold_files(tmp_path):
    _droppable(tmp_path)
    path = _written(tmp_path / "data.bin", 100_000)
    recorder = recorder_of(WARMS.replace("DATA", str(path)), tmp_path)
    assert recorder.storage(observe(recorder)) is not None
    seen = observe(recorder)
    window = ProfilerWindow(warmup_steps=1, profiled_steps=4, analysed_steps=6)
    recorder.profile(seen.steps_found.boundary, window, 200.0, cold=True, forked=False)
    shares = Path(f"{path}.log").read_text().split()
    assert shares == ["1.0", "1.0", "0.0"], "only the last launch had its files dropped"


def _remarks(number: int) -> list[str]:
    tried = TrialResults(
        trials=[],
        noise_floor=None,
        recommendation=Recommendation(),
        baselines=[LaunchTiming(ended="measured", step_s=[0.002] * 20)],
    )
    return remarks(recording(cold_page_cache.CHECK.fires[number]), tried)


def test_speed_ups_of_warm_files_are_not_passed_off_as_those_of_a_first_epoch():
    assert "cold-files" in _remarks(0)
    assert "step-time-changed" not in _remarks(0), "it is the cache, not the load"
    assert "files-beyond-cache" in _remarks(1)
