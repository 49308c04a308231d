"""The mounts of this machine, and what kind of storage a path lies on."""

import contextlib
import functools
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# No files to protect, or nothing that could be laid over.
VIRTUAL = frozenset(
    (
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "cgroup",
        "cgroup2",
        "mqueue",
        "debugfs",
        "tracefs",
        "securityfs",
        "pstore",
        "bpf",
        "configfs",
        "hugetlbfs",
        "fusectl",
        "binfmt_misc",
        "autofs",
        "nsfs",
        "rpc_pipefs",
        "efivarfs",
        "selinuxfs",
    )
)
KEPT_FLAGS = ("nosuid", "nodev", "noexec")
_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_NETWORK = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "glusterfs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "virtiofs",
        "vboxsf",
        "wekafs",
    )
)
ANSWERS_WITHIN_S = 3.0
_VIRTUAL_DISKS = ("vd", "xvd", "zd", "nbd", "rbd", "drbd")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    path: str
    kind: str
    options: tuple[str, ...] = ()
    is_file: bool = False
    source: str = ""  # a device, "host:/export", whatever the file system calls it
    device: str = ""  # "major:minor"

    @property
    def takes_writes(self) -> bool:
        """Return whether it is a store of files that a program could change."""
        return self.kind not in VIRTUAL and "ro" not in self.options

    @property
    def flags(self) -> list[str]:
        """Return the restrictions to keep: nosuid, nodev, noexec."""
        return [flag for flag in KEPT_FLAGS if flag in self.options]


def read_mounts(text: str) -> list[Mount]:
    """Return the mounts of /proc/self/mountinfo by path; of several on one path the visible one."""
    mounts = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        root, path = map(_unescape, left.split(" ")[3:5])
        mounts[path] = Mount(
            path=path,
            kind=right.split(" ")[0],
            options=tuple(left.split(" ")[5].split(",")),
            source=_unescape(right.split(" ")[1]),
            device=left.split(" ")[2],
            # Only a part of a file system may be a file; a dead one hangs who looks at it.
            is_file=root != "/" and not os.path.isdir(path),  # noqa: PTH112 - no permission: False
        )
    return sorted(mounts.values(), key=lambda mount: mount.path)


def mounts_now() -> list[Mount]:
    """Return the mounts that this process sees; [] where the system does not list them.

    Without those that do not answer, and what lies below: whoever looks at them hangs.
    """
    dead = unanswered()
    return [
        m for m in _listed() if not any(path == m.path or _is_below(m.path, path) for path in dead)
    ]


@functools.cache  # waiting takes seconds
def unanswered() -> frozenset[str]:
    """Return the mounts of servers and of other programs (FUSE) that do not answer in time."""
    asked = {m.path for m in _listed() if m.kind in _NETWORK or _is_fuse(m)}
    answered: set[str] = set()

    def ask(path: str) -> None:
        with contextlib.suppress(OSError):  # an error is an answer
            os.lstat(path)
        answered.add(path)

    # Daemons: one that hangs keeps nobody from ending.
    threads = [threading.Thread(target=ask, args=(path,), daemon=True) for path in asked]
    deadline = time.monotonic() + ANSWERS_WITHIN_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    return frozenset(asked - answered)


def _listed() -> list[Mount]:
    try:
        return read_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    except OSError:
        return []


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _is_fuse(mount: Mount) -> bool:
    return mount.kind.partition(".")[0] == "fuse"


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that a path, with its links resolved, lies on."""
    around = [m for m in mounts if path == m.path or _is_below(path, m.path)]
    return max(around, key=lambda mount: len(mount.path), default=None)


def kind_of(mount: Mount, sys: Path = Path("/sys")) -> tuple[str, str]:
    """Return what a mount is, as in `MountReads.kind`, and the disk below it ("": not known)."""
    if mount.kind in _MEMORY or mount.kind == "overlay":
        return "memory" if mount.kind in _MEMORY else "overlay", ""
    if mount.kind in _NETWORK:
        return "network", ""
    if _is_fuse(mount):
        return "FUSE", ""
    disk = _disk(sys / "dev/block" / mount.device)
    return (_kind_of_disk(disk), disk.name) if disk is not None else ("unknown", "")


def _disk(device: Path) -> Path | None:
    """Return the whole disk's folder: a partition's parent, what a mapped volume lies on."""
    if not device.exists():
        return None
    device = device.resolve()
    device = device.parent if (device / "partition").exists() else device
    below = sorted((device / "slaves").glob("*"))
    return _disk(below[0]) if below else device


def _kind_of_disk(disk: Path) -> str:
    if disk.name.startswith(("zram", "ram")):
        return "memory"
    # A virtual disk calls itself rotating whatever lies behind it.
    if disk.name.startswith(_VIRTUAL_DISKS):
        return "network" if disk.name.startswith(("nbd", "rbd", "drbd")) else "virtual disk"
    model = _text(disk / "device/model")
    if "Elastic Block Store" in model or "PersistentDisk" in model:
        return "virtual disk"
    rotating = _text(disk / "queue/rotational")
    return {"1": "rotating disk", "0": "solid state"}.get(rotating, "unknown")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
