"""/dev/shm: a private one for each launch, else what a killed program left there is removed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path("/dev/shm")
SHOWN_AT_MOST = 100
# torch_<pid>_..., files staged by a fix, POSIX semaphores, multiprocessing.shared_memory, NCCL.
_OURS = re.compile(r"^((torch|torchdoctor-staged)_(?P<pid>\d+)_|sem\.|psm_|nccl-)")


def private_steps() -> list[list[Any]]:
    """Steps for `sandbox_entry.py`: an empty /dev/shm of the same size.

    Data that somebody keeps there stays visible: folders with a layer of their own, files to be
    read. It is no layer over the whole, because older C libraries look for a tmpfs there.
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
    """Names of the segments that belong to this user."""
    found = set()
    with contextlib.suppress(OSError), os.scandir(FOLDER) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    found.add(entry.name)
    return found


def remove_left(before: set[str], pids: Iterable[int]) -> list[str]:
    """Remove segments made since `before` by the processes `pids`; returns their names.

    A segment whose name has no pid is removed only if no living process has it mapped.
    """
    ours = set(pids)
    new = {name: _OURS.match(name) for name in segments() - before}
    named = {name for name, match in new.items() if match and match["pid"]}
    left = {name for name in named if int(new[name]["pid"]) in ours}  # type: ignore[index]
    others = {name for name, match in new.items() if match} - named
    if others:
        left |= others - _mapped()
    for name in left:
        with contextlib.suppress(OSError):
            if (FOLDER / name).is_dir():
                shutil.rmtree(FOLDER / name)
            else:
                (FOLDER / name).unlink()
    return sorted(left)


def _mapped() -> set[str]:
    """Names of segments that some process of this user has mapped."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                _, mark, name = line.partition(f"{FOLDER}/")
                if mark:
                    found.add(name.split(" (deleted)")[0])
    return found
