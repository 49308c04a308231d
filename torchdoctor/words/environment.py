"""The machine and the software that a program ran on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as NVML reports it; None: not measured."""

    index: int
    name: str
    memory_bytes: int | None = None
    compute_capability: str | None = None  # "9.0"
    pcie_generation: int | None = None
    pcie_width: int | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class ContainerLimits:
    """cgroup and affinity limits; None: no limit found."""

    cpu_quota: float | None = None  # in CPUs
    memory_bytes: int | None = None
    shm_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The machine and the software; None: not known, as a trace that somebody gave names little.

    `usable_cpus` heeds affinity and the cgroup quota.
    """

    torch: str | None = None
    python: str | None = None
    platform: str | None = None
    cpu: str | None = None
    cpu_cores: int | None = None  # physical, all of the machine
    usable_cpus: float | None = None
    cpu_features: list[str] = field(default_factory=list)  # "avx512f", "amx_bf16", ...
    memory_bytes: int | None = None
    gpus: list[Gpu] = field(default_factory=list)
    driver: str | None = None
    cuda: str | None = None
    container: ContainerLimits = field(default_factory=ContainerLimits)
    numa_nodes: int | None = None
    sandbox: str = "none"  # "overlay" | "redirect" | "none"

    @property
    def cpus(self) -> float:
        """`usable_cpus`, or 1 where it is not known."""
        return self.usable_cpus or 1.0

    @property
    def whole_cpus(self) -> int:
        """CPUs that a process or thread each can have; at least 1."""
        return max(math.floor(self.cpus), 1)
