"""Reads answered from copies: from a real slow mount, through the real probe."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from light_torch import LIGHT
from partial_recordings import merged, recording
from slow_mount import missing, slow_mount

from torchdoctor.advice import catalogue
from torchdoctor.checks.slow_storage import CHECK
from torchdoctor.launch import shared_memory
from torchdoctor.schema import fact

FIX = catalogue.fixes()["fast-storage"]
on_fuse = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PROGRAM = f"""
import hashlib, os, sys, torch
{LIGHT}from torch.utils.data import DataLoader, Dataset

SHM = os.stat("/dev/shm").st_dev

class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            assert file.name == self.paths[index]
            value = int(hashlib.sha256(file.read()).hexdigest()[:6], 16)
            return torch.tensor([float(value)]), os.fstat(file.fileno()).st_dev == SHM

if __name__ == "__main__":
    model = torch.nn.Linear(1, 1)
    for x, in_memory in DataLoader(Files(sys.argv[1]), batch_size=4, num_workers=int(sys.argv[2])):
        print(x.flatten().tolist(), in_memory.tolist())
        model(x).sum().backward()
"""


def _run(tmp_path: Path, probed, program: str, *arguments: str, **settings):
    script = tmp_path / "train.py"
    script.write_text(program)
    fix = {
        "id": "fast-storage",
        "file": FIX.file,
        "settings": {"place": "memory", "limit_bytes": 10**8, "mount": "/", **settings},
    }
    ran = probed(
        [str(script), *arguments],
        cwd=tmp_path,
        folder=tmp_path,
        after="continue",
        fixes=[fix],
        files_read=str(tmp_path / "files-read.txt"),
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.said() == []
    assert not (tmp_path / "channel/staged/copies").exists(), "copies are removed"
    # Another test may run at the same time.
    left = [p for pid in ran.facts for p in Path("/dev/shm").glob(f"torchdoctor-staged_{pid}_*")]
    assert not left
    return ran


@pytest.mark.slow
@on_fuse
@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_same_samples_come_from_memory(tmp_path, probed, workers):
    (tmp_path / "data").mkdir()
    for number in range(8):
        (tmp_path / f"data/{number}").write_bytes(os.urandom(20_000))
    with slow_mount(tmp_path / "data") as folder:
        paths = "".join(f"{folder}/{number}\n" for number in range(6))
        (tmp_path / "files-read.txt").write_text(paths)  # the last two are copied when read
        (tmp_path / "off").mkdir()
        (tmp_path / "off/train.py").write_text(PROGRAM)
        plain = probed(
            [str(tmp_path / "off/train.py"), str(folder), workers],
            cwd=tmp_path,
            folder=tmp_path / "off",
            after="continue",
        )
        ran = _run(tmp_path, probed, PROGRAM, str(folder), workers, mount=str(folder))
    assert "True" not in plain.stdout
    assert ran.stdout.replace("True", "False") == plain.stdout
    assert "False" not in ran.stdout
    (fix,) = ran.main["fixes"]
    assert fix["state"] == "applied"
    assert fix["details"]["files"] == 6


READERS = """
import gzip, io, mmap, os, pathlib, sys, tarfile, zipfile
import numpy, torch

SHM = os.stat("/dev/shm").st_dev
real, seen = os.open, []
folder = pathlib.Path(sys.argv[1])

def mapped(name):
    return any(name in line for line in open("/proc/self/maps"))

def device(file):
    return os.fstat(file.fileno()).st_dev == SHM

with open(folder / "text.txt") as file:
    print("open", device(file), file.read())
with (folder / "text.txt").open("rb") as file:
    print("pathlib", device(file), pathlib.Path(file.name).name)
number = os.open(folder / "text.txt", os.O_RDONLY)
print("os.open", os.fstat(number).st_dev == SHM)
os.close(number)
array = numpy.memmap(folder / "array.raw", dtype="f8", mode="r")
print("memmap", array.tolist(), mapped("torchdoctor-staged_"), os.path.basename(array.filename))
print("load", numpy.load(folder / "array.npy").tolist())
print("fromfile", numpy.fromfile(folder / "array.raw").tolist())
print("torch.load", torch.load(folder / "tensor.pt").tolist())
print("zipfile", zipfile.ZipFile(folder / "files.zip").read("a"))
print("gzip", gzip.open(folder / "text.gz").read())
try:
    open(folder / "none.txt")
except FileNotFoundError as error:
    print(os.path.basename(error.filename))
for mode in ("r+", "a", "rb+"):
    with open(folder / "text.txt", mode) as file:
        print(mode, device(file))
with open(folder / "text.txt", "w") as file:
    file.write("changed")
print(open(folder / "text.txt").read())
os.utime(folder / "text.txt")
with open("/proc/self/comm") as file:
    print("proc", device(file))
"""

READ = """open True before
pathlib True text.txt
os.open True
memmap [1.0, 2.0] True array.raw
load [1.0, 2.0]
fromfile [1.0, 2.0]
torch.load [3.0]
zipfile b'inside'
gzip b'packed'
none.txt
r+ False
a False
rb+ False
changed
proc False"""


@pytest.mark.slow
def test_all_python_readers_are_answered_and_writers_never(tmp_path, probed):
    import gzip
    import zipfile

    import numpy as np
    import torch

    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "text.txt").write_text("before")
    np.array([1.0, 2.0]).tofile(folder / "array.raw")
    np.save(folder / "array.npy", np.array([1.0, 2.0]))
    torch.save(torch.tensor([3.0]), folder / "tensor.pt")
    with zipfile.ZipFile(folder / "files.zip", "w") as file:
        file.writestr("a", "inside")
    with gzip.open(folder / "text.gz", "wb") as file:
        file.write(b"packed")
    train = "\nmodel = torch.nn.Linear(1, 1); model(torch.ones(1)).backward()\n"
    ran = _run(tmp_path, probed, READERS + train, str(folder))
    assert ran.stdout.strip() == READ


@pytest.mark.slow
def test_no_more_is_copied_than_is_allowed(tmp_path, probed):
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(8):
        (folder / str(number)).write_bytes(os.urandom(2**16))
    ran = _run(
        tmp_path, probed, PROGRAM, str(folder), "0", limit_bytes=3 * 2**16, mount=str(folder)
    )
    assert ran.stdout.count("True") == 3


@pytest.mark.slow
def test_copies_on_the_disk_go_with_the_launch(tmp_path, probed):
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(4):
        (folder / str(number)).write_bytes(b"x")
    (tmp_path / "files-read.txt").write_text("".join(f"{folder}/{n}\n" for n in range(4)))
    ran = _run(tmp_path, probed, PROGRAM, str(folder), "0", place="disk")
    assert ran.main["fixes"][0]["details"]["files"] == 4


def test_copies_of_a_killed_program_are_removed(tmp_path):
    left = Path(f"/dev/shm/torchdoctor-staged_{2**22 + 5}_x")
    before = shared_memory.segments()
    left.mkdir()
    (left / "copy").write_bytes(b"x")
    try:
        assert shared_memory.remove_left(before, [2**22 + 5]) == [left.name]
        assert not left.exists()
    finally:
        if left.exists():
            (left / "copy").unlink()
            left.rmdir()


PLACES = [
    {"place": "memory", "kind": "memory", "free_bytes": 10**10},
    {"place": "disk", "kind": "solid state", "free_bytes": 10**11, "cold_bytes_per_s": 1e9},
]


def _seen(mount=None, places=PLACES, **more):
    storage = {"places": places, "memory_bytes": 2**34}
    storage["mounts"] = [{**CHECK.fires[0]["storage"]["mounts"][0], **(mount or {})}]
    return recording(merged({"storage": storage, **more}, merged(CHECK.fires[0])))


def test_memory_and_then_a_disk_that_is_faster_are_tried():
    seen = _seen()
    assert FIX.refuses(seen) is None
    assert [one["place"] for one in FIX.settings(seen)] == ["memory", "disk"]
    slow_disk = [PLACES[0], {**PLACES[1], "cold_bytes_per_s": 2.1e7}]
    assert [one["place"] for one in FIX.settings(_seen(places=slow_disk))] == ["memory"]
    network = [{**PLACES[1], "kind": "network"}]
    assert FIX.refuses(_seen(places=network)).fact == "no-faster-place"


def test_refused_where_there_is_no_room_for_the_whole_data_set():
    loader = {"ident": 0, "batches": 110, "samples": 880, "sample_cpu_share": 0.1}
    many = [{"pid": 1, "loaders": [{**loader, "dataset_length": 1_000_000}]}]
    why = FIX.refuses(_seen(places=[PLACES[0]], processes=many))
    assert (why.fact, why.values["needed_gb"]) == ("no-faster-place", pytest.approx(100.0))
    small = _seen(places=[PLACES[0]], environment={"container": {"memory_bytes": 10**8}})
    assert FIX.refuses(small).fact.startswith("no-faster-place")


@pytest.mark.parametrize(
    ("mount", "reason"),
    [
        ({"warm_file_s": 1e-6}, "hidden-by-cache"),
        ({"kind": "memory"}, "files-in-memory"),
        ({"cold_file_s": 1e-6, "warm_file_s": 1e-6}, "reading-hardly-matters"),
        ({"opens": 0, "held": 2, "opened_in_c": 2}, "opened-in-c"),
    ],
)
def test_refused_with_the_reason(mount, reason):
    assert FIX.refuses(_seen(mount)).fact == reason


def test_refused_where_files_are_read_in_c():
    seen = recording({"storage": {"mounts": [], "c_readers": ["cv2"]}})
    assert FIX.refuses(seen) == fact("no-file-read-but-in-c", readers=["cv2"])


def test_the_command_names_the_copy():
    seen = _seen(
        {"folders": ["/mnt/data/train/a", "/mnt/data/train/b"]},
        workload={"command": ["python", "train.py", "--data=/mnt/data/train"]},
    )
    commands = [
        shlex.split(line, comments=True)
        for line in FIX.instruction(FIX.settings(seen)[0], seen).splitlines()
    ]
    words = [word for command in commands for word in command]
    copied = words.index("cp")
    assert words[copied : copied + 4] == ["cp", "-a", "/mnt/data/train/.", "/dev/shm/train/"]
    assert "--data=/dev/shm/train" in words


def test_a_folder_that_the_script_names_is_shown_with_its_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os\n\ndata = Images('/mnt/data/train/')\n")
    seen = _seen(
        {"folders": ["/mnt/data/train/a", "/mnt/data/train/b"]},
        workload={"command": ["python", "train.py"], "script": str(script), "cwd": str(tmp_path)},
    )
    last = FIX.instruction(FIX.settings(seen)[0], seen).splitlines()[-1]
    place, literal, comment = last.split("  ")
    assert (place, literal) == ("train.py:3", "'/dev/shm/train/'")
    assert comment.startswith("# ") and comment.endswith("'/mnt/data/train/'")
    script.write_text("data = Images(folder)\n")
    last = FIX.instruction(FIX.settings(seen)[0], seen).splitlines()[-1]
    assert last.startswith("# "), "no line of the script is known"
    assert {"/dev/shm/train", "/mnt/data/train"} <= set(last.split())
