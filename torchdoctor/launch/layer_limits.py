"""What a launch's layer has to do with how the program ended: its disk was full, it was denied."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchdoctor.schema import Evidence, fact
from torchdoctor.schema.figures import binary_size

_NO_ROOM = re.compile(r"No space left on device|\bENOSPC\b|\[Errno 28\]|os error 28|Disk full")
_DENIED = re.compile(r"Permission denied|\bEACCES\b|Operation not permitted|\[Errno 13\]")
# What a program could not write in whole it may have removed: a little may be free again.
_NEARLY_FULL_BYTES = 64 << 20
_NEARLY_FULL_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Room:
    """The file system that holds a layer, when it was fullest."""

    folder: str  # on a disk; "": it lies in memory
    size_bytes: int
    free_bytes: int

    @property
    def is_full(self) -> bool:
        """Return whether next to nothing can be written."""
        enough = max(_NEARLY_FULL_BYTES, _NEARLY_FULL_SHARE * self.size_bytes)
        return self.free_bytes < min(enough, self.size_bytes / 2)


def room(folder: Path) -> Room:
    """Return the room of the disk that a folder lies on."""
    disk = os.statvfs(folder)
    size = disk.f_blocks * disk.f_frsize
    free = disk.f_bavail * disk.f_frsize
    return Room(folder=str(folder), size_bytes=size, free_bytes=free)


def full_layer(output: str, rooms: Iterable[Room | None]) -> Room | None:
    """Return the layer that was full as the program complained of it; None: neither."""
    full = (
        [room for room in rooms if room is not None and room.is_full]
        if _NO_ROOM.search(output)
        else []
    )
    return full[0] if full else None


def full(layer: Room) -> Evidence:
    """Return whose limit it was, and how far it goes."""
    size = layer.size_bytes
    free = layer.free_bytes
    if not layer.folder:
        return fact("scratch-memory-full", size_bytes=size, free_bytes=free)
    return fact("scratch-folder-full", folder=layer.folder, size_bytes=size, free_bytes=free)


def said_of_shared_disk(folder: Path) -> str:
    """Return what to do where a full disk holds the layers and the run's own files."""
    size = binary_size(room(folder).size_bytes)
    return (
        f"The disk of {folder} is full ({size}), where what the program writes goes until each "
        "launch ends, and the run's own files as well: free space there, or set TMPDIR and "
        "--output to folders on a disk with more room."
    )


def was_denied(output: str) -> bool:
    """Return whether the program complains that it may not do something."""
    return _DENIED.search(output) is not None
