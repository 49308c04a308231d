"""The files a loader reads, seen by the real probe, and their storage, measured for real."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from slow_mount import missing, slow_mount

from torchdoctor.machine.mounts import Mount, kind_of, mount_of
from torchdoctor.machine.storage import bytes_per_s, file_s, measure, storage_facts
from torchdoctor.probe.measure import page_cache

on_fuse = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def _files(folder: Path, count: int, size: int = 40_000) -> list[str]:
    folder.mkdir()
    for number in range(count):
        with (folder / f"{number}.bin").open("wb") as file:
            file.write(bytes([number]) * size)
            os.fsync(file.fileno())  # pages that are not on the disk yet cannot be dropped
    return [str(path) for path in sorted(folder.iterdir())]


PROGRAM = """
import sys, numpy, torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, folder):
        self.folder = folder
        self.names = open(folder + "/names.txt").read().split()  # before training: not the loop's
        self.weights = numpy.memmap(folder + "/weights.raw", mode="r")  # kept open

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        with open(f"{self.folder}/{self.names[index]}", "rb") as file:
            return torch.tensor(list(file.read(4))).float() * float(self.weights[0])

if __name__ == "__main__":
    folder, workers = sys.argv[1], int(sys.argv[2])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x in DataLoader(Files(folder), batch_size=2, num_workers=workers):
            model(x).sum().backward()
            optimizer.step()
            open("/tmp/none-such-written-by-a-test", "w").close()
"""


def _observed(tmp_path: Path, probed, workers: int, folder: Path) -> SimpleNamespace:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("/tmp/none-such-written-by-a-test", str(tmp_path / "log")))
    ran = probed(
        [str(script), str(folder), str(workers)],
        cwd=tmp_path,
        folder=tmp_path,
        watch_files=True,
        after="continue",
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.said() == []
    return ran


def _data(folder: Path) -> None:
    names = [Path(path).name for path in _files(folder, 6)]
    (folder / "names.txt").write_text(" ".join(names))
    (folder / "weights.raw").write_bytes(b"\\1" * 4096)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loaders_files_are_seen_in_it_and_its_workers(tmp_path, probed, workers):
    folder = tmp_path / "data"
    _data(folder)
    ran = _observed(tmp_path, probed, workers, folder)
    facts = storage_facts(ran.channel, tmp_path)
    (mount,) = facts.mounts
    assert mount.files == 6 + 1  # names.txt was read before training
    # Two epochs; each makes its dataset anew, which maps the weights again.
    assert mount.opens in (12, 13)
    assert mount.held == 1
    assert mount.opened_in_c == 0  # numpy maps by Python's open
    assert mount.folders == [str(folder)]
    listed = (tmp_path / "files-read.txt").read_text().split()
    assert sorted(listed) == sorted(
        [*(str(folder / f"{n}.bin") for n in range(6)), str(folder / "weights.raw")]
    )


@pytest.mark.slow
@on_fuse
def test_slow_storage_is_measured_as_slow_and_as_fuse(tmp_path, probed):
    _data(tmp_path / "data")
    with slow_mount(tmp_path / "data") as folder:
        ran = _observed(tmp_path, probed, 0, folder)
        facts = storage_facts(ran.channel, tmp_path)
    (mount,) = facts.mounts
    assert mount.path == str(folder)
    assert mount.kind == "FUSE"
    # bindfs lets no more than this through, whatever the machine does.
    assert mount.cold_bytes_per_s < 1_000_000
    assert mount.cold_file_s < 3 * mount.warm_file_s, "the page cache does not hide it"
    assert {place.place for place in facts.places} == {"memory", "disk"}


@on_fuse
@pytest.mark.parametrize("direct", [False, True])
def test_the_page_cache_hides_a_local_disk_but_not_fuse(tmp_path, direct):
    paths = _files(tmp_path / "data", 4)
    cold, _ = measure(paths, 5.0)
    assert bytes_per_s(cold) is not None, "their pages can be dropped"
    with slow_mount(tmp_path / "data", direct=direct) as folder:
        _, warm = measure([str(folder / Path(path).name) for path in paths[:2]], 5.0)
    assert bytes_per_s(warm) < 1_000_000


def test_measuring_leaves_the_page_cache_as_it_was(tmp_path):
    (path,) = _files(tmp_path / "data", 1)
    measure([path], 5.0)
    assert page_cache.share_of(path)[0] == 1.0
    assert Path(path).read_bytes() == bytes([0]) * 40_000


def test_files_that_cannot_be_read_are_left_out(tmp_path):
    cold, _ = measure([str(tmp_path / "none"), str(tmp_path)], 1.0)
    assert bytes_per_s(cold) is None
    assert file_s(cold, 10.0) is None


def test_no_log_is_no_storage(tmp_path):
    assert storage_facts(tmp_path, tmp_path) is None


@pytest.mark.parametrize(
    ("mount", "kind"),
    [
        ({"kind": "nfs4", "source": "host:/x"}, "network"),
        ({"kind": "fuse.sshfs"}, "FUSE"),
        ({"kind": "tmpfs"}, "memory"),
        ({"kind": "overlay"}, "overlay"),
        ({"kind": "ext4", "device": "8:1"}, "rotating disk"),
        ({"kind": "xfs", "device": "253:0"}, "solid state"),
        ({"kind": "ext4", "device": "254:0"}, "virtual disk"),
        ({"kind": "btrfs", "device": "0:55"}, "unknown"),
    ],
)
def test_kinds_of_storage(tmp_path, mount, kind):
    block, numbers = tmp_path / "devices", tmp_path / "dev/block"
    numbers.mkdir(parents=True)
    for name, rotational in (("sda", "1"), ("nvme0n1", "0"), ("vda", "1")):
        (block / name / "queue").mkdir(parents=True)
        (block / name / "queue/rotational").write_text(rotational + "\n")
    (block / "sda/sda1").mkdir()
    (block / "sda/sda1/partition").write_text("1\n")
    (block / "dm-0/slaves").mkdir(parents=True)
    (block / "dm-0/slaves/nvme0n1").symlink_to(block / "nvme0n1")
    for number, name in (("8:1", "sda/sda1"), ("253:0", "dm-0"), ("254:0", "vda")):
        (numbers / number).symlink_to(block / name)
    assert kind_of(Mount(path="/x", **mount), tmp_path)[0] == kind


def test_the_innermost_and_last_mount_holds_a_path():
    mounts = [Mount(path="/", kind="ext4"), Mount(path="/data", kind="nfs4")]
    assert mount_of("/data/x", mounts).kind == "nfs4"
    assert mount_of("/database", mounts).kind == "ext4"
