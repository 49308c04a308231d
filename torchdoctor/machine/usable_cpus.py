"""The CPUs and the memory that this process may use: affinity and cgroup limits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_CFS = ("quota", "period")
_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number where there is none


def affinity() -> list[int]:
    """Return numbers of the logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cpus() -> float:
    """Return the smaller of affinity and cgroup quota, at least a tenth of a CPU."""
    quota = cpu_quota()
    count = float(len(affinity()))
    return count if quota is None else max(0.1, min(count, quota))


def cpu_quota(root: Path = CGROUPS, membership: str | None = None) -> float | None:
    """Return the CPUs that the tightest cgroup around us allows; None: no limit.

    Args:
        root: where the cgroup file systems are mounted.
        membership: text of /proc/self/cgroup; None: read it.
    """
    quotas: list[float] = []
    for folder in _folders("cpu", root, membership):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            if (folder / "cpu.max").is_file():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{x}_us").read_text() for x in _CFS)
            quotas.append(float(quota) / float(period))
    return min((quota for quota in quotas if quota > 0), default=None)


def memory_limit_bytes(root: Path = CGROUPS, membership: str | None = None) -> int | None:
    """Return the memory that the tightest cgroup around us allows; None: no limit."""
    limits: list[int] = []
    for folder in _folders("memory", root, membership):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min((limit for limit in limits if limit < _NO_LIMIT), default=None)


def _folders(controller: str, root: Path, membership: str | None) -> Iterator[Path]:
    """Yield folders of our cgroup and of all above, for version 2 and one version 1 controller.

    Inside a container the path of /proc/self/cgroup may not exist below the mount: then the
    mount itself is our cgroup.
    """
    if membership is None:
        own = Path("/proc/self/cgroup")
        membership = own.read_text() if own.exists() else ""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            bases = [root, root / "unified"]
        elif controller in controllers.split(","):
            bases = [root / controller, root / controllers]
        else:
            continue
        for base in bases:
            folder = base / path.lstrip("/")
            while folder != base.parent:
                yield folder
                folder = folder.parent
