"""The plan of an overlay sandbox: which file systems are laid over each other, in what order."""

import os
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torchdoctor.machine.mounts import VIRTUAL, Mount

# Nobody keeps checkpoints there: their layers stay in memory, which costs nothing to remove.
SYSTEM = frozenset(
    (
        "/bin",
        "/boot",
        "/etc",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/lost+found",
        "/media",
        "/run",
        "/sbin",
        "/usr",
    )
)
EXPAND_AT_MOST = 256  # entries of a folder that are mounted one by one

Step = list[Any]


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


class Entry(NamedTuple):
    """What lies in a folder: "folder", "file", or a "link" with its target."""

    path: str
    kind: str
    target: str = ""


def _entries(folder: str) -> list[Entry] | None:
    """Return what lies in a folder; None where it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                Entry(entry.path, "link", os.readlink(entry.path))  # noqa: PTH115 - bytes as they are
                if entry.is_symlink()
                else Entry(entry.path, "folder" if entry.is_dir() else "file")
                for entry in entries
            )
    except OSError:
        return None


@dataclass(kw_only=True)
class Planner:
    """Makes the steps: file systems laid over each other so that nothing a program writes stays.

    Every folder of the root gets a layer of its own, so that large files go to the scratch disk; so
    does every file system below. What is no store of files (/proc, /sys, /dev) is shown as it is.
    `mounts[0].path` is "/"; `scratch` holds the layers on disk, none below what it is laid over;
    `foreign` must exist in a layer beforehand. With `userns` mounts are locked together: a folder
    with mounts below it cannot be a lower layer and is taken apart instead.
    """

    mounts: list[Mount]
    scratch: str
    userns: bool
    foreign: Set[str] = frozenset()
    entries: Callable[[str], list[Entry] | None] = _entries
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_path = {mount.path: mount for mount in self.mounts}

    def plan(self, *, skip: Iterable[str] = ("/proc",)) -> list[Step]:
        """Return the steps for the whole tree, but for the folders of the root named in `skip`."""
        root = self._by_path["/"]
        for entry in self.entries("/") or []:
            if entry.path not in skip:
                self._entry(entry, root)
        return self.steps

    def _entry(self, entry: Entry, around: Mount) -> None:
        if entry.kind == "link":
            self.steps.append(["link", entry.path, entry.target])
        elif entry.kind == "file":
            self.steps.append(["view", entry.path, around.flags, True])
        else:
            self._folder(entry.path, self._by_path.get(entry.path, around))

    def _outermost(self, folder: str, *, writable: bool = False) -> list[Mount]:
        """Return mounts below a folder, without those that lie below another one of them."""
        outermost: list[Mount] = []
        for mount in self.mounts:
            hidden = any(_below(mount.path, outer.path) for outer in outermost)
            if _below(mount.path, folder) and not hidden and (mount.takes_writes or not writable):
                outermost.append(mount)
        return outermost

    def _folder(self, path: str, mount: Mount) -> None:
        if not mount.takes_writes:
            self._shown(path, mount, read_only=False)
            return
        children = self._outermost(path)
        if children and self.userns:
            self._apart(path, mount)
            return
        on_disk = path not in SYSTEM and not _below(self.scratch, path)
        # Folders come before what is in them.
        before = sorted(
            foreign.removeprefix(f"{path}/") for foreign in self.foreign if _below(foreign, path)
        )
        self.steps.append(["overlay", path, on_disk, mount.flags, before])
        for child in children:
            self._mounted(child)

    def _mounted(self, mount: Mount) -> None:
        if mount.is_file:
            self.steps.append(["view", mount.path, mount.flags, True])
        else:
            self._folder(mount.path, mount)

    def _shown(self, path: str, mount: Mount, *, read_only: bool) -> None:
        """Show the real thing; files that could be changed below it still get their layer.

        Not so below /dev or /sys: what is mounted there serves the kernel, not to keep files.
        """
        self.steps.append(["view", path, mount.flags, read_only])
        if mount.kind in VIRTUAL and mount.kind != "autofs":
            return
        for child in self._outermost(path, writable=True):
            if not child.is_file:
                self._folder(child.path, child)

    def _apart(self, path: str, mount: Mount) -> None:
        entries = self.entries(path)
        if entries is None or len(entries) > EXPAND_AT_MOST:
            self._shown(path, mount, read_only=True)
            return
        self.steps.append(["folder", path, Path(path).stat().st_mode & 0o7777])
        for entry in entries:
            below = self._by_path.get(entry.path)
            if below is not None and below.is_file:
                self._mounted(below)
            else:
                self._entry(entry, mount)
