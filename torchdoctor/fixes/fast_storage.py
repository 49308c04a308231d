"""Copy the files that the loader reads to the fastest local storage, and read them there.

## What it does
Copies data files from slow storage (network, FUSE, rotating disk) to memory (`/dev/shm`) or to the
local disk, and answers reads from the copies. The files that the observed loop read are copied
before training begins; others, up to 64 MB each, when they are first read. A copy is used only
while its original is unchanged (size, time of change).

## Why it helps
Each file on a network or FUSE file system costs round trips; memory and local disks answer at once.

## Risks
The same bytes are read, unless a file is written while it is open. A place is tried only if all
files are likely to fit into half of its free space. Python's reads are redirected, and so those of
NumPy, PIL, `torch.load` and `zipfile`. Libraries that open files in C or C++ (`cv2`, `h5py`,
`lmdb`, `pyarrow`) go on reading the slow storage: copy the folder and name the copy. That may gain
more than was measured, because the trial asks the slow storage whether each file has changed.

## Make it permanent
    cp -a /mnt/data/train /dev/shm/train      # at the beginning of each job
    python train.py --data /dev/shm/train

## Sources
- Linux documentation, tmpfs: https://docs.kernel.org/filesystems/tmpfs.html
"""

import atexit
import contextlib
import os
import shlex
import shutil
import stat
import tempfile
import time
from typing import Any

from torchdoctor.edits.calls import loader_location
from torchdoctor.edits.reading import names_of_folder
from torchdoctor.queries.lookup import place
from torchdoctor.queries.slow_reads import likely_bytes, read_mounts_of, slow_mounts, why_not_slow
from torchdoctor.queries.touched import WAITS, waits
from torchdoctor.schema import (
    Evidence,
    Example,
    FixSpec,
    Location,
    Recording,
    Settings,
    fact,
)

_MOST_OF_FREE = 0.5
_FASTER = 2.0  # a disk is worth it where it gives this many times the slow storage's bytes/s
_LOCAL = ("solid state", "virtual disk", "rotating disk")
_COPY_S = 20.0  # before training
_MOST_WHILE_READING = 64 * 2**20  # bytes of a file that is copied when it is first read
_UNIT = 2**16
_FOLDER = "TORCHDOCTOR_STAGED"  # tells children where the copies lie


def refuses(recording: Recording) -> Evidence | None:
    slow = slow_mounts(recording)
    storage = recording.storage
    if not slow or storage is None:
        return why_not_slow(recording)
    mount = slow[0][0]
    if not mount.opens and mount.opened_in_c >= mount.held:
        return fact("opened-in-c", path=mount.path)
    if settings(recording):
        return None
    places = [
        {"place": place.place, "kind": place.kind, "free_gb": place.free_bytes / 1e9}
        for place in storage.places
    ]
    needed_gb = likely_bytes(recording, mount) / 1e9
    if not places:
        return fact("no-faster-place-at-all", needed_gb=needed_gb)
    return fact("no-faster-place", needed_gb=needed_gb, places=places)


def settings(recording: Recording) -> list[Settings]:
    slow = slow_mounts(recording)
    storage = recording.storage
    if not slow or storage is None:
        return []
    mount = slow[0][0]
    places = []
    fast = _FASTER * (mount.cold_bytes_per_s or 0.0)
    for local in storage.places:
        limit = int(_MOST_OF_FREE * local.free_bytes)
        if local.kind == "memory":
            limit = min(limit, (recording.environment.container.memory_bytes or 4 * limit) // 4)
        elif local.kind not in _LOCAL or (local.cold_bytes_per_s or -1.0) < fast:
            continue
        if likely_bytes(recording, mount) <= limit:
            places.append({"place": local.place, "mount": mount.path, "limit_bytes": limit})
    return places


class _Stage:
    """Copies of files, named by path, size and time of change, in a folder of all processes.

    `limit`: bytes of all copies together.
    """

    def __init__(self, folder: str, limit: int, program: Any) -> None:
        self._folder = folder
        self._limit = limit
        self._program = program
        self._used = os.path.join(folder, "used")  # a byte for each 64 KiB: appending is atomic

    def copy_of(self, path: str, most: float) -> str | None:
        """Return an existing copy, or one made now where the file has at most `most` bytes."""
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                return None  # the kernel's own files have no size, and other content each time
            target = os.path.join(self._folder, self._program.name_of(path))
            is_copied = os.path.exists(target)
            if not is_copied and status.st_size <= most:
                is_copied = self._copy(path, status, target)
        except OSError:
            return None  # no room, or the file is gone
        return target if is_copied else None

    def _copy(self, path: str, status: os.stat_result, target: str) -> bool:
        units = -(-status.st_size // _UNIT)
        if (os.path.getsize(self._used) + units) * _UNIT > self._limit:
            return False
        with open(self._used, "ab") as file:
            file.write(b"." * units)
        part = f"{target}.{os.getpid()}.part"
        try:
            shutil.copyfile(path, part)
            os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
            is_same: bool = os.path.basename(target) == self._program.name_of(path)
            if is_same:
                os.replace(part, target)
            return is_same
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)


def apply(torch: Any, settings: Settings, program: Any) -> None:
    folder, first = _folder(settings["place"], program)
    stage = _Stage(folder, int(settings["limit_bytes"]), program)
    is_below = program.is_below(settings["mount"])
    program.set_reason("no-file-read-there", mount=settings["mount"])
    began_s = time.monotonic()
    files = 0
    for path in program.read_before() if first else ():
        if time.monotonic() > began_s + _COPY_S:
            break
        files += is_below(path) and stage.copy_of(path, float("inf")) is not None
    if files:
        program.applied(files=files, copied_s=round(time.monotonic() - began_s, 3))

    def instead(path: str) -> str | None:
        copy = stage.copy_of(path, _MOST_WHILE_READING) if is_below(path) else None
        if copy is not None:
            program.applied(place=settings["place"])
        return copy

    program.redirect_reads(instead)


def _folder(place: str, program: Any) -> tuple[str, bool]:
    """Return the folder of the copies, and whether this process is the first to need it."""
    existing_folder = os.environ.get(_FOLDER)
    if existing_folder and os.path.isdir(existing_folder):
        return existing_folder, False
    owner = os.getpid()
    if place == "memory":
        folder = tempfile.mkdtemp(prefix=f"torchdoctor-staged_{owner}_", dir="/dev/shm")
    else:
        folder = program.shared_folder("copies")
    with open(os.path.join(folder, "used"), "wb"):
        pass
    os.environ[_FOLDER] = folder

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder, True


def instruction(settings: Settings, recording: Recording) -> str:
    mounts = [mount for mount in read_mounts_of(recording) if mount.path == settings["mount"]]
    folders = [folder for mount in mounts for folder in mount.folders]
    source = os.path.commonpath(folders) if folders else settings["mount"]
    to = "/dev/shm" if settings["place"] == "memory" else "/path/on/a/local/disk"
    copy = os.path.join(to, os.path.basename(source.rstrip("/")) or "data")
    lines = [f"mkdir -p {shlex.quote(copy)}", f"cp -a {shlex.quote(source)}/. {shlex.quote(copy)}/"]
    workload = recording.workload
    command = [_pointed(word, source, copy) for word in workload.command]
    named = names_of_folder(workload.script, source) if workload.script is not None else []
    if command != workload.command:
        lines.append(shlex.join(command))
    elif named:  # by the script itself
        line, old = named[0]
        where = place(recording, Location(file=workload.script or "", line=line), "")
        lines.append(f"{where}  {_pointed(old, source, copy)!r}  # in place of {old!r}")
    else:
        lines.append(f"# then let the program read {copy} instead of {source}")
    return "\n".join(lines)


def _pointed(word: str, source: str, copy: str) -> str:
    """Return an argument with the copy in place of the folder that it names."""
    option, equals, value = word.rpartition("=")
    if value == source or value.startswith(source + "/"):
        return option + equals + copy + value[len(source) :]
    return word


FIX = FixSpec(
    name="files on fast local storage",
    treats=("slow-storage", "loader-io-bound", "data-wait"),
    keeps_results="exactly",
    phases=("data_wait_s", "loader_start_s", "before_forward_s"),
    touches=lambda recording: waits(recording, *WAITS, "before_forward_s"),
    p_helps=0.6,  # reads wait for the storage
    setup_s=10.0,
    refuses=refuses,
    sentences={
        "opened-in-c": "The files on {path} are opened by a C library: copy the folder yourself "
        "and name the copy.",
        "no-faster-place": "No faster place with room for {needed_gb:.2f} GB in half of it: "
        "{places:each place}.",
        "no-faster-place-at-all": "No faster place with room for {needed_gb:.2f} GB in half of it: "
        "none.",
        "place": "{place} ({kind}, {free_gb:.1f} GB free)",
        "no-file-read": "No file was seen being read in the loop.",
        "no-file-read-but-in-c": "No file was seen being read in the loop: {readers:list} may open "
        "files in C, which is not watched.",
        "files-in-memory": "The files already lie in memory: {path} ({file_system}, {kind}).",
        "hidden-by-cache": "The page cache hides {path} ({file_system}, {kind}): read once, the "
        "files fit into memory.",
        "reading-unmeasured": "How long reading from {path} ({file_system}, {kind}) takes could "
        "not be measured.",
        "reading-hardly-matters": "Reading from {path} ({file_system}, {kind}) takes only "
        "{share:percent} of the step.",
        "no-file-read-there": "No file on {mount} was read by Python.",
    },
    settings=settings,
    suits=lambda trace: False,
    apply=apply,
    location=loader_location,
    instruction=instruction,
    example=Example(
        code="""
import os, pathlib, tempfile
from torch.utils.data import DataLoader
def read(paths):
    numbers, places = [], set()
    for path in paths:
        with open(path, "rb") as file:
            places.add(os.fstat(file.fileno()).st_dev == os.stat("/dev/shm").st_dev)
            numbers.append(float(file.read()))
    return torch.tensor(numbers).unsqueeze(1), places
if __name__ == "__main__":
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.getcwd()))
    for number in range(4):
        (folder / f"{number}.bin").write_text(str(number))
    model = torch.nn.Linear(1, 1)
    for x, places in DataLoader(sorted(folder.iterdir()), batch_size=2, collate_fn=read):
        print(x.flatten().tolist(), "from memory" if places == {True} else "from the disk")
        model(x).sum().backward()
""",
        settings={"place": "memory", "mount": "/", "limit_bytes": 10**6},
        without="[0.0, 1.0] from the disk\n[2.0, 3.0] from the disk",
        with_fix="[0.0, 1.0] from memory\n[2.0, 3.0] from memory",
    ),
)
