"""Copy the files that the loader reads to the fastest local storage, and read them there.

What it does
------------
Copies data files from slow storage (network, FUSE, rotating disk) to memory (`/dev/shm`) or to the
local disk, and answers reads from the copies. The files that the observed loop read are copied
before training begins; others, up to 64 MB each, when they are first read. A copy is used only
while its original is unchanged (size, time of change).

Why it helps
------------
Every file on a network or FUSE file system costs round trips at each epoch if the page cache does
not keep it. Memory and a local solid-state disk answer in microseconds.

Risks
-----
The same bytes are read, unless a file is written while it is open. The copies take memory or disk:
a place is tried only if all files are likely to fit into half of its free space. Reads by `open`,
`io.open` and `os.open` are redirected, and so those of NumPy, PIL, `torch.load`, `zipfile` and
`pathlib`. Libraries that open files in C or C++ (`cv2`, `h5py`, `lmdb`, `pyarrow`) go on reading
the slow storage: copy the folder and name the copy. A script that reads the copied folder may gain
more than was measured, because the trial asks the slow storage whether each file has changed.

Make it permanent
-----------------
    cp -a /mnt/data/train /dev/shm/train      # at the beginning of each job
    python train.py --data /dev/shm/train

Sources
-------
- Linux documentation, tmpfs: https://docs.kernel.org/filesystems/tmpfs.html
- Slurm and cloud guides recommend the same: stage data to node-local storage before training.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shlex
import shutil
import stat
import tempfile
import time
from typing import Any

from torchdoctor.edits.calls import loader_location
from torchdoctor.edits.reading import names_of_folder
from torchdoctor.facts.lookup import place
from torchdoctor.facts.slow_reads import likely_bytes, read_mounts_of, slow_mounts, why_not_slow
from torchdoctor.words import Location, MountReads, Recording
from torchdoctor.words.specs import Example, FixSpec

_MOST_OF_FREE = 0.5
_FASTER = 2.0  # a disk is worth it where it gives this many times the slow storage's bytes/s
_LOCAL = ("solid state", "virtual disk", "rotating disk")
_COPY_S = 20.0  # before training
_MOST_WHILE_READING = 64 * 2**20  # bytes of a file that is copied when it is first read
_UNIT = 2**16
_KERNELS = ("/proc", "/sys", "/dev", "/run")
_FOLDER = "TORCHDOCTOR_STAGED"  # tells children where the copies lie


def refuses(recording: Recording) -> str | None:
    """Return why copies cannot apply or cannot gain."""
    slow = slow_mounts(recording)
    if not slow:
        return why_not_slow(recording)
    mount = slow[0][0]
    if not mount.opens and mount.opened_in_c >= mount.held:
        return (
            f"The files on {mount.path} are opened by a C library, whose reads cannot be "
            "redirected: copy the folder yourself and name the copy."
        )
    if not settings(recording):
        return _no_room(recording, mount)
    return None


def _no_room(recording: Recording, mount: MountReads) -> str:
    places = recording.storage.places if recording.storage is not None else []
    listed = ", ".join(
        f"{place.place} ({place.kind}, {place.free_bytes / 1e9:.1f} GB free)" for place in places
    )
    return (
        f"No faster place with room for {likely_bytes(recording, mount) / 1e9:.2f} GB in half of "
        f"it: {listed or 'none'}."
    )


def settings(recording: Recording) -> list[dict[str, Any]]:
    """Return each faster local place with room, memory first."""
    slow, storage = slow_mounts(recording), recording.storage
    if not slow or storage is None:
        return []
    mount = slow[0][0]
    places = []
    for local in storage.places:
        limit = int(_MOST_OF_FREE * local.free_bytes)
        memory = recording.environment.container.memory_bytes
        if local.kind == "memory" and memory is not None:
            limit = min(limit, memory // 4)
        is_fast = local.kind in _LOCAL and local.cold_bytes_per_s is not None
        if local.kind != "memory" and not (
            is_fast and (local.cold_bytes_per_s or 0.0) >= _FASTER * (mount.cold_bytes_per_s or 0.0)
        ):
            continue
        if likely_bytes(recording, mount) <= limit:
            places.append({"place": local.place, "mount": mount.path, "limit_bytes": limit})
    return places


class _Stage:
    """Copies of files, named by what they are copies of: path, size and time of change.

    Args:
        folder: shared by all processes of the program.
        mount: only files below it are copied.
        limit: bytes of all copies together.
    """

    def __init__(self, folder: str, mount: str, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._mount = mount.rstrip(os.sep) + os.sep
        self._within: dict[str, bool] = {}
        self._used = os.path.join(folder, "used")  # a byte for each 64 KiB: appending is atomic

    def concerns(self, path: str) -> bool:
        """Return True if a file lies on the slow mount, links in its folders resolved."""
        folder = os.path.dirname(path)
        known = self._within.get(folder)
        if known is None:
            known = (os.path.realpath(folder) + os.sep).startswith(self._mount)
            self._within[folder] = known and not folder.startswith(_KERNELS)
        return self._within[folder]

    def copy_of(self, path: str, most: int | None) -> str | None:
        """Return an existing copy, or one made now where the file has at most `most` bytes."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return None  # the kernel's own files have no size, and other content each time
        target = self._target(path, status)
        if os.path.exists(target):
            return target
        if most is not None and status.st_size > most:
            return None
        return target if self._copy(path, status, target) else None

    def _target(self, path: str, status: os.stat_result) -> str:
        # The very file: a link may have moved to another of the same size and the same instant.
        very = (path, status.st_dev, status.st_ino)
        state = (*very, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        name = hashlib.sha256(repr(state).encode("utf-8", "surrogateescape")).hexdigest()
        return os.path.join(self.folder, name[:40])

    def _copy(self, path: str, status: os.stat_result, target: str) -> bool:
        units = -(-status.st_size // _UNIT)
        part = f"{target}.{os.getpid()}.part"
        try:
            if (os.path.getsize(self._used) + units) * _UNIT > self.limit:
                return False
            with open(self._used, "ab") as file:
                file.write(b"." * units)
            shutil.copyfile(path, part)
            os.utime(part, ns=(status.st_atime_ns, status.st_mtime_ns))
            if self._target(path, os.stat(path)) == target:
                os.replace(part, target)
                return True
        except OSError:
            pass  # no room, or the file is gone
        with contextlib.suppress(OSError):
            os.unlink(part)
        return False


def apply(torch: Any, settings: dict[str, Any], program: Any) -> None:
    """Copy what the observed loop read, then answer reads from copies."""
    folder, first = _folder(settings["place"], program)
    stage = _Stage(folder, settings["mount"], int(settings["limit_bytes"]))
    program.set_reason(f"No file on {settings['mount']} was read by Python.")
    if first:
        _copy_before(stage, program)

    def instead(path: str) -> str | None:
        if not stage.concerns(path):
            return None
        copy = stage.copy_of(path, _MOST_WHILE_READING)
        if copy is not None:
            program.applied(place=settings["place"])
        return copy

    program.redirect_reads(instead)


def _folder(place: str, program: Any) -> tuple[str, bool]:
    """Return the folder of the copies, and whether this process is the first to need it."""
    known = os.environ.get(_FOLDER)
    if known and os.path.isdir(known):
        return known, False
    if place == "memory":
        folder = tempfile.mkdtemp(prefix=f"torchdoctor-staged_{os.getpid()}_", dir="/dev/shm")
    else:
        folder = program.shared_folder("copies")
    with open(os.path.join(folder, "used"), "wb"):
        pass
    os.environ[_FOLDER] = folder
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder, True


def _copy_before(stage: _Stage, program: Any) -> None:
    until = time.monotonic() + _COPY_S
    files = 0
    for path in program.read_before():
        if time.monotonic() > until:
            break
        if stage.concerns(path) and stage.copy_of(path, None) is not None:
            files += 1
    if files:
        program.applied(files=files, copied_s=round(time.monotonic() - until + _COPY_S, 3))


def instruction(settings: dict[str, Any], recording: Recording) -> str:
    """Return what to copy, and the command that reads the copy, where the folder is an argument."""
    folders = [
        f for m in read_mounts_of(recording) if m.path == settings["mount"] for f in m.folders
    ]
    source = os.path.commonpath(folders) if folders else settings["mount"]
    to = "/dev/shm" if settings["place"] == "memory" else "/path/on/a/local/disk"
    copy = os.path.join(to, os.path.basename(source.rstrip("/")) or "data")
    lines = [f"mkdir -p {shlex.quote(copy)}", f"cp -a {shlex.quote(source)}/. {shlex.quote(copy)}/"]
    command = [_pointed(word, source, copy) for word in recording.workload.command]
    named = _named(recording, source)
    if command != recording.workload.command:
        lines.append(shlex.join(command))
    elif named is not None:
        where, old = named
        lines.append(f"{where}  {_pointed(old, source, copy)!r}  # in place of {old!r}")
    else:
        lines.append(f"# then let the program read {copy} instead of {source}")
    return "\n".join(lines)


def _named(recording: Recording, folder: str) -> tuple[str, str] | None:
    """Return where the script itself names the folder, and the words that it uses."""
    script = recording.workload.script
    for line, text in names_of_folder(script, folder) if script is not None else ():
        return place(recording, Location(file=script or "", line=line), ""), text
    return None


def _pointed(word: str, source: str, copy: str) -> str:
    """Return an argument with the copy in place of the folder that it names."""
    option, equals, value = word.rpartition("=")
    if value == source or value.startswith(source + "/"):
        return option + equals + copy + value[len(source) :]
    return word


FIX = FixSpec(
    file=__file__,
    page=__doc__,
    treats=("slow-storage", "loader-io-bound", "data-wait"),
    keeps_results="exactly",
    phases=("data_wait_s", "loader_start_s", "before_forward_s"),
    when="launch",
    p_helps=0.6,  # reads wait for the storage
    setup_s=10.0,
    refuses=refuses,
    settings=settings,
    suits=lambda trace: False,
    apply=apply,
    location=loader_location,
    instruction=instruction,
    example=Example(
        code="""
import os, tempfile
import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with open(f"{self.folder}/{index}.bin", "rb") as file:
            here = os.fstat(file.fileno()).st_dev == os.stat("/dev/shm").st_dev
            return torch.tensor([float(file.read())]), here


if __name__ == "__main__":
    folder = tempfile.mkdtemp(dir=os.getcwd())
    for index in range(4):
        with open(f"{folder}/{index}.bin", "w") as file:
            file.write(str(index))
    model = torch.nn.Linear(1, 1)
    for x, in_memory in DataLoader(Files(folder), batch_size=2):
        print(x.flatten().tolist(), "from memory" if in_memory.all() else "from the disk")
        model(x).sum().backward()
""",
        settings={"place": "memory", "mount": "/", "limit_bytes": 10**6},
        without="[0.0, 1.0] from the disk\n[2.0, 3.0] from the disk",
        with_fix="[0.0, 1.0] from memory\n[2.0, 3.0] from memory",
    ),
)
