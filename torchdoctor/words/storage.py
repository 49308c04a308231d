"""Where the files lie that the training loop reads, and how fast they can be read there."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchdoctor.words.program import Location

SLOW_KINDS = ("network", "FUSE", "rotating disk")


@dataclass(frozen=True, kw_only=True)
class MountReads:
    """The files that the loop read from one mounted file system; None: not measured.

    Speeds are those of torchdoctor's own reads of some of these files after the launch, whole
    files up to 8 MiB, first with their pages dropped from the page cache (cold), then again (warm).
    """

    path: str
    file_system: str  # as the kernel names it: "ext4", "nfs4", "fuse.sshfs"
    source: str = ""
    device: str = ""  # of the disk, such as "sda"; "" where there is none
    kind: str = "unknown"  # "network" | "FUSE" | "rotating disk" | "solid state" |
    # "virtual disk" | "memory" | "overlay" | "unknown"
    files: int = 0
    file_bytes: int = 0  # all of them together
    opens: int = 0  # in the loader and its workers, or in the loop where there is none
    held: int = 0  # files kept open or mapped while training (memory maps, archives, databases)
    opened_in_c: int = 0  # of the held: a C library opened them
    folders: list[str] = field(default_factory=list)  # with most of the files, at most 4
    endings: list[str] = field(default_factory=list)  # ".jpg", ".csv": most frequent, at most 4
    cold_bytes_per_s: float | None = None
    warm_bytes_per_s: float | None = None
    cold_file_s: float | None = None  # to open and read a file of the mean size
    warm_file_s: float | None = None
    latency_s: float | None = None  # median: open, and the first 4 KiB
    cached_share: float | None = None  # of the pages, as the launch left them
    looked_at: int = 0  # files whose pages were looked at before training first read of them
    cached_at_first: float | None = None  # share of their bytes that was in the page cache then


@dataclass(frozen=True, kw_only=True)
class StagingPlace:
    """Local storage that files could be copied to."""

    place: str  # "memory" (/dev/shm) | "disk" (of the run folder)
    kind: str  # as in MountReads
    free_bytes: int
    cold_bytes_per_s: float | None = None  # as in MountReads, of a file that was written there


@dataclass(frozen=True, kw_only=True)
class RemoteReads:
    """Files that the loop opened through fsspec, by protocol ("s3", "https")."""

    protocol: str
    files: int = 0
    opens: int = 0
    example: str = ""  # a path
    location: Location | None = None  # the user's line that opens most


@dataclass(frozen=True, kw_only=True)
class TableReads:
    """Calls of one of pandas' readers of text ("read_csv") in the loop."""

    function: str
    calls: int = 0
    files: int = 0
    total_s: float = 0.0  # all calls together, those of workers too
    example: str = ""  # a path, as the program gives it
    location: Location | None = None  # the user's line that reads most


@dataclass(frozen=True, kw_only=True)
class StorageFacts:
    """What the loop reads. `c_readers`: loaded libraries whose reads Python does not see."""

    mounts: list[MountReads] = field(default_factory=list)  # by opens, descending
    remote: list[RemoteReads] = field(default_factory=list)
    tables: list[TableReads] = field(default_factory=list)
    available: list[str] = field(default_factory=list)  # of fsspec, pyarrow, alluxiofs
    alluxio_workers: str | None = None  # ALLUXIO_WORKER_HOSTS: "host:port,host:port"
    places: list[StagingPlace] = field(default_factory=list)  # fastest first
    c_readers: list[str] = field(default_factory=list)
    memory_bytes: int | None = None  # free for the page cache and for copies
