"""/dev/shm: a private one for each launch, else what a killed program left there is removed."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

FOLDER = Path("/dev/shm")
SHOWN_AT_MOST = 100
Segment = tuple[int, int, int]  # device (major, minor) and inode of its file
# torch_<pid>_..., files staged by a fix, POSIX semaphores, multiprocessing.shared_memory, NCCL.
_OURS = re.compile(r"^((torch|torchdoctor-staged)_(?P<pid>\d+)_|sem\.|psm_|nccl-)")


def private_steps() -> list[list[Any]]:
    """Return steps for `sandbox_entry.py`: an empty /dev/shm of the same size.

    What lies there stays visible. It is no layer: older C libraries look for a tmpfs there.
    """
    size = os.statvfs(FOLDER)
    steps: list[list[Any]] = [["empty", str(FOLDER), size.f_blocks * size.f_frsize, 0o1777]]
    with contextlib.suppress(OSError), os.scandir(FOLDER) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name)[:SHOWN_AT_MOST]:
            if entry.is_dir(follow_symlinks=False):
                steps.append(["overlay", entry.path, False, [], []])
            elif entry.is_file(follow_symlinks=False) and not _OURS.match(entry.name):
                steps.append(["view", entry.path, ["nosuid", "nodev"], True])
    return steps


def segments() -> set[str]:
    """Return names of the segments that belong to this user."""
    names = set()
    for path in FOLDER.glob("*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                names.add(path.name)
    return names


def remove_left(
    before: set[str], pids: Iterable[int], held: Set[Segment] = frozenset()
) -> list[str]:
    """Remove what a launch left there and nobody needs any more; return the names.

    Those of `before` stay. Some carry the pid of their maker; of the others (semaphores, NCCL) only
    what the launch's processes had mapped (`held`) goes: the rest may be another program's.
    """
    ours = set(pids)
    nameless = held - mapped() if held else held
    left = []
    for name in sorted(segments() - before):
        match = _OURS.match(name)
        if match and (int(match["pid"]) in ours if match["pid"] else _file(name) in nameless):
            left.append(name)
            with contextlib.suppress(OSError):
                if (FOLDER / name).is_dir():
                    shutil.rmtree(FOLDER / name)
                else:
                    (FOLDER / name).unlink()
    return left


def mapped(pids: Iterable[int] | None = None) -> set[Segment]:
    """Return segments that these processes (None: all of this user) have mapped, by their file."""
    segments = set()
    for pid in (path.name for path in Path("/proc").glob("[0-9]*")) if pids is None else pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                if f"{FOLDER}/" in line:
                    major, minor = line.split()[3].split(":")
                    segments.add((int(major, 16), int(minor, 16), int(line.split()[4])))
    return segments


def _file(name: str) -> Segment | None:
    with contextlib.suppress(OSError):
        status = (FOLDER / name).stat(follow_symlinks=False)
        return os.major(status.st_dev), os.minor(status.st_dev), status.st_ino
    return None
