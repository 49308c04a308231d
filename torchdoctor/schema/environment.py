"""The machine and the software that a program ran on, its sensors and its storage."""

import math
from dataclasses import dataclass, field
from typing import Annotated

from torchdoctor.schema.location import Location

SLOW_KINDS = ("network", "FUSE", "rotating disk")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as NVML reports it, or the program's torch; None: not measured."""

    index: int  #: Number of the device, from 0, in the driver's order, which CUDA need not share.
    name: str  #: Its product name.
    memory_bytes: int | None = None  #: Its memory.
    compute_capability: str | None = None  #: E.g. "9.0".
    uuid: str | None = None  #: Without "GPU-" or "MIG-", by which driver and torch agree.
    in_use: bool | None = None  #: Whether the program has memory on it; null: not known.


@dataclass(frozen=True, kw_only=True)
class ContainerLimits:
    """cgroup and affinity limits; None: no limit found."""

    cpu_quota: float | None = None  #: CPUs that the cgroup allows; null: no limit.
    memory_bytes: int | None = None  #: Memory that the cgroup allows; null: no limit.
    shm_bytes: int | None = None  #: Size of /dev/shm, by which loader workers hand over batches.


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The machine and the software; a trace that the user gave names little of them."""

    torch: str | None = None  #: Version of torch in the program.
    python: str | None = None  #: Version of Python in the program; null: not known.
    platform: str | None = None  #: Operating system; null: not known.
    cpu: str | None = None  #: The processor's name; null: not known.
    cpu_cores: int | None = None  #: Physical cores of the whole machine; null: not known.
    usable_cpus: float | None = None  #: CPUs it may use by affinity and quota; null: not known.
    cpu_features: list[str] = field(default_factory=list)  #: Vector extensions.
    memory_bytes: int | None = None  #: Memory of the machine.
    gpus: list[Gpu] = field(default_factory=list)  #: The machine's, those in use first.
    driver: str | None = None  #: Version of the GPU driver.
    cuda: str | None = None  #: CUDA version that torch was built with.
    hip: str | None = None  #: Version of ROCm's HIP that torch was built with.
    container: ContainerLimits = field(default_factory=ContainerLimits)  #: Limits of the container.
    numa_nodes: int | None = None  #: Memory nodes of the machine.
    sandbox: Annotated[str, "overlay", "landlock", "none"] = "none"  #: How writes were kept apart.

    @property
    def used_gpus(self) -> list[Gpu]:
        """Return the GPUs that the program uses, or all where that is not known."""
        return [gpu for gpu in self.gpus if gpu.in_use] or self.gpus

    @property
    def cpus(self) -> float:
        """Return `usable_cpus`, or 1 if it is not known."""
        return self.usable_cpus or 1.0

    @property
    def built_for(self) -> str | None:
        """Return what torch was built for, such as "CUDA 12.8"; None: for CPUs, or not known."""
        return f"ROCm {self.hip}" if self.hip else self.cuda and f"CUDA {self.cuda}"

    @property
    def whole_cpus(self) -> int:
        """Return how many processes can have a CPU of their own; at least 1."""
        return max(math.floor(self.cpus), 1)


@dataclass(frozen=True, kw_only=True)
class Throttling:
    """Why a GPU slowed itself down, and how often."""

    reason: str  #: As NVML names it: "power cap".
    share: float  #: Of the samples.


@dataclass(frozen=True, kw_only=True)
class SensorStatistics:
    """psutil and NVML samples over the measured window; None: not measured."""

    samples: int = 0  #: How often the sensors were read.
    window_s: float = 0.0  #: Time that they cover.
    cpu_share: float | None = None  #: CPU in use, as a share of the usable CPUs.
    workers_cpus: float | None = None  #: CPUs kept busy by all of its children.
    workers_queued_cpus: float | None = None  #: CPUs more that its children waited for.
    other_load_cpus: float | None = None  #: CPUs kept busy by everybody else.
    iowait_share: float | None = None  #: CPU time that waited for disks.
    #: Seconds of each second for which the cgroup's CPU quota stopped its threads, all together.
    quota_stopped_s: float | None = None
    rss_peak_bytes: int | None = None  #: Resident memory of the process tree at its highest.
    memory_peak_bytes: int | None = None  #: The same, shared memory counted once (or so).
    rss_growth_bytes_per_s: float | None = None  #: Slope of RSS, above 0 only if it always rose.
    swap_used_bytes: int | None = None  #: Swap in use.
    threads: int | None = None  #: Threads of the process tree.
    read_bytes_per_s: float | None = None  #: Read from disks.
    gpu_utilization: float | None = None  #: Mean GPU utilization as the driver reports it.
    gpu_memory_peak_bytes: int | None = None  #: GPU memory at its highest.
    gpu_power_w: float | None = None  #: Mean power.
    #: Of the program's GPUs over window_s, by the driver's counters (NVML).
    gpu_energy_j: float | None = None
    #: Of the machine's processors over window_s, others' load included, by RAPL's counters.
    cpu_energy_j: float | None = None
    gpu_sm_clock_mhz: float | None = None  #: Mean clock of the GPU.
    gpu_throttle: list[Throttling] = field(default_factory=list)  #: How the GPU slowed down.
    gpu_other_processes: int | None = None  #: Other processes on any GPU of the machine.
    gpu_sharing_processes: int | None = None  #: Other processes on a GPU of the program.


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
    kind: str = "unknown"  # or SLOW_KINDS, "solid state", "virtual disk", "memory", "overlay"
    files: int = 0
    file_bytes: int = 0  # all of them together
    opens: int = 0  # in the loader and its workers, or in the loop where there is none
    held: int = 0  # files kept open or mapped while training (memory maps, archives, databases)
    opened_in_c: int = 0  # of the held: a C library opened them
    folders: list[str] = field(default_factory=list)  # with most of the files, at most 4
    cold_bytes_per_s: float | None = None
    cold_file_s: float | None = None  # to open and read a file of the mean size
    warm_file_s: float | None = None
    latency_s: float | None = None  # median: open, and the first 4 KiB
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
