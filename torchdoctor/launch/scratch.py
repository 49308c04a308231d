"""The folder that the writes of a launch go to until they are thrown away."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchdoctor.machine.mounts import Mount, mount_of

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and stale folders stay
    fcntl = None  # type: ignore[assignment]

PREFIX = "torchdoctor-scratch-"
# File systems that can hold a layer; overlay itself, network and FUSE lack what the kernel asks.
LAYER_KINDS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs"}


def candidates(beside: Path | None) -> list[Path]:
    """Return folders that may hold the scratch folder, the preferred first."""
    folders = [Path("/var/tmp"), Path(tempfile.gettempdir()), Path("/tmp"), beside]
    return [p for p in folders if p is not None and p.is_dir() and os.access(p, os.W_OK | os.X_OK)]


def choose(
    beside: Path | None, mounts: Sequence[Mount], cwd: str | None = None
) -> tuple[Path, bool]:
    """Return the folder to make scratch folders in, and whether it can hold an overlay's layers.

    Apart from the working folder (a layer cannot lie below what it is laid over), with most room.
    """
    top = Path(cwd).resolve().parts[:2] if cwd is not None else ()
    ranked = []
    for folder in candidates(beside):
        mount = mount_of(str(folder.resolve()), mounts)
        place = folder.resolve()
        kind = mount.kind if mount is not None else ""
        free = shutil.disk_usage(folder).free >> 30
        rank = (kind in LAYER_KINDS, place.parts[:2] != top, kind != "tmpfs", free)
        ranked.append((rank, folder))
    # On one disk the first candidate wins.
    best, folder = max(
        ranked, key=lambda ranking: ranking[0], default=((False,), Path(tempfile.gettempdir()))
    )
    return folder, best[0]


class Scratch:
    """A folder of our own, locked while this process lives, and gone at `close`.

    Folders of the same user that nobody locks any more (their process was killed) go as well.
    """

    def __init__(self, parent: Path) -> None:
        user = str(os.getuid()) if hasattr(os, "getuid") else "user"
        prefix = f"{PREFIX}{user}-"
        if fcntl is not None:
            for stale in parent.glob(f"{prefix}*"):
                _remove_unlocked(stale)
        self.folder, self._lock = _locked_folder(parent, prefix)
        self._launches = 0

    def new(self) -> Path:
        """Return an empty folder for one launch."""
        self._launches += 1
        folder = self.folder / str(self._launches)
        folder.mkdir(mode=0o700)
        return folder

    def close(self) -> None:
        """Remove all of it."""
        remove_tree(self.folder)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """Return a new folder and the descriptor of its lock, had before another process removes it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        if fcntl is None:
            return folder, None
        with contextlib.suppress(FileNotFoundError):
            # Close-on-exec by Python's default: no launched program keeps the lock.
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)


def _remove_unlocked(folder: Path) -> None:
    with contextlib.suppress(OSError):
        # Not followed: /var/tmp is open to everybody, and what is removed must be ours.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(folder)
        finally:
            os.close(descriptor)


def remove_tree(folder: Path) -> bool:
    """Remove a folder that an overlay used (its work folders have mode 000). True: it is gone."""
    for _ in range(4):  # what _open_up made accessible was skipped in that pass
        shutil.rmtree(folder, onerror=_open_up)
        if not folder.exists():
            return True
    return False


def _open_up(function: Any, path: str, error: Any) -> None:
    for place in (Path(path), Path(path).parent):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(place.lstat().st_mode):
                place.chmod(0o700)
