"""What kind of storage a path lies on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchdoctor.recording.sandbox_plan import Mount

_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "gfs2", "gpfs", "lustre"),
        *("ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs"),
        *("virtiofs", "vboxsf", "wekafs"),
    )
)
_VIRTUAL_DISKS = ("vd", "xvd", "zd", "nbd", "rbd", "drbd")


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that a path, with its links resolved, lies on."""
    found = None
    for mount in mounts:
        inside = path == mount.path or path.startswith(mount.path.rstrip("/") + "/")
        if inside and (found is None or len(mount.path) >= len(found.path)):
            found = mount
    return found


def kind_of(mount: Mount, sys: Path = Path("/sys")) -> tuple[str, str]:
    """What a mount is, as in `MountReads.kind`, and the disk below it ("" where none is known).

    Args:
        mount: of /proc/self/mountinfo.
        sys: the kernel's /sys.
    """
    if mount.kind in _MEMORY:
        return "memory", ""
    if mount.kind in _NETWORK:
        return "network", ""
    if mount.kind == "fuse" or mount.kind.startswith("fuse."):
        return "FUSE", ""
    if mount.kind == "overlay":
        return "overlay", ""
    disk = _disk(sys / "dev/block" / mount.device)
    if disk is None:
        return "unknown", ""
    return _kind_of_disk(disk), disk.name


def _disk(device: Path) -> Path | None:
    """The folder of the whole disk: a partition's parent, what a device-mapper volume lies on."""
    if not device.exists():
        return None
    device = device.resolve()
    if (device / "partition").exists():
        device = device.parent
    below = sorted((device / "slaves").glob("*"))
    if below:
        return _disk(below[0])
    return device


def _kind_of_disk(disk: Path) -> str:
    if disk.name.startswith(("zram", "ram")):
        return "memory"
    # A virtual disk calls itself rotating whatever lies behind it.
    if disk.name.startswith(_VIRTUAL_DISKS):
        return "network" if disk.name.startswith(("nbd", "rbd", "drbd")) else "virtual disk"
    try:
        model = (disk / "device/model").read_text()
    except OSError:
        model = ""
    if "Elastic Block Store" in model or "PersistentDisk" in model:
        return "virtual disk"
    try:
        rotating = (disk / "queue/rotational").read_text().strip() == "1"
    except OSError:
        return "unknown"
    return "rotating disk" if rotating else "solid state"
