"""Samples the machine and the program's processes beside a watched run, as rows of a table."""

import contextlib
import math
import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from torchdoctor.machine import environment, nvml
from torchdoctor.machine.sensors import ProcessSensors, busy_s
from torchdoctor.watch.inside import layout

_PRESSURE = Path("/proc/pressure")


class MachineLog:
    """Rows of `layout.MACHINE_COLUMNS`; `root`: the program's first process."""

    def __init__(self, root: int, path: Path, gpus: nvml.Nvml | None) -> None:
        self._gpus = gpus
        self._tree: ProcessSensors | None = None
        with contextlib.suppress(psutil.Error):
            self._tree = ProcessSensors(root)
        self._file = layout.AppendedFile(str(path), layout.table_head(layout.MACHINE_COLUMNS))
        self._pack = layout.row_of(layout.MACHINE_COLUMNS).pack
        self._limit = environment.memory_limit_bytes() or math.inf
        self._tree_cpu_s = 0.0
        self.last: dict[str, float] = {}

    def sample(self) -> None:
        """Append a row; what cannot be measured is NaN."""
        row = dict.fromkeys((name for name, _ in layout.MACHINE_COLUMNS), math.nan)
        memory = psutil.virtual_memory()
        row |= {
            "cpus": environment.usable_cpus(),
            "busy_s": sum(busy_s()),
            "iowait_s": getattr(psutil.cpu_times(), "iowait", math.nan),
            "cpu_mhz": _mhz(),
            "throttled_s": environment.quota_stopped_s(),
            "memory_free_bytes": min(memory.available, self._room()),
            "memory_limit_bytes": min(memory.total, self._limit),
            "swap_in_bytes": psutil.swap_memory().sin,
            "own_cpu_s": sum(os.times()[:2]),
        }
        row |= {f"{kind}_pressure_s": _pressure_s(kind) for kind in ("cpu", "memory", "io")}
        tree = self._tree.read() if self._tree is not None else None
        if tree is not None and self._tree is not None:
            # A process that ended and was not yet waited for is in no counter for a moment.
            self._tree_cpu_s = max(self._tree_cpu_s, tree["tree_cpu_s"])
            row |= {"tree_cpu_s": self._tree_cpu_s, "tree_bytes": tree["pss_bytes"]}
            row |= {name: tree[name] for name in ("read_bytes", "read_ops", "write_bytes")}
            row |= _of_gpus(self._gpus, self._tree.alive.keys())
        times = {"t_ns": time.monotonic_ns(), "unix_ns": time.time_ns()}
        self._file.add(self._pack(*times.values(), *list(row.values())[len(times) :]))
        self._file.flush()
        self.last = row

    def _room(self) -> float:
        """Return bytes that the cgroup's limit leaves; the page cache is given back if needed."""
        if self._limit == math.inf:
            return math.inf
        of_cgroup = environment.of_cgroup
        used = of_cgroup("memory", "memory.current") or of_cgroup("memory", "memory.usage_in_bytes")
        stat = of_cgroup("memory", "memory.stat")
        files = [line.split()[1] for line in stat.splitlines() if line.startswith("inactive_file ")]
        return max(0.0, self._limit - float(used or 0) + float(files[0] if files else 0))


def _of_gpus(gpus: nvml.Nvml | None, ours: Iterable[int]) -> dict[str, float]:
    """Return the GPU columns: of the devices that these processes compute on, or of all."""
    if gpus is None or not gpus.devices:
        return {}
    running = [gpus.processes(device) or set() for device in gpus.devices]
    used = [n for n, pids in enumerate(running) if pids & set(ours)] or range(len(running))
    values = {
        name: [v for n in used if not math.isnan(v := gpus.read(name, gpus.devices[n]))]
        for name in nvml.READINGS
    }
    bits = 0
    for value in values["throttle"]:
        bits |= int(value)
    limits = [gpu.memory_bytes or math.nan for gpu in gpus.describe()]
    return {
        "gpu_utilization": statistics.fmean(values["utilization"] or [math.nan]),
        "gpu_memory_bytes": max(values["memory_bytes"], default=math.nan),
        "gpu_memory_limit_bytes": min((limits[n] for n in used), default=math.nan),
        "gpu_power_w": sum(values["power_w"]) if values["power_w"] else math.nan,
        "gpu_clock_mhz": min(values["sm_clock_mhz"], default=math.nan),
        "gpu_throttle": bits & sum(nvml.THROTTLE_REASONS),
        # In a container the driver's numbers are not ours: then nobody can tell.
        "gpu_others": max(
            len(running[n] - set(ours)) if running[n] & set(ours) else 0 for n in used
        ),
    }


def _mhz() -> float:
    with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
        frequency = psutil.cpu_freq()
        return frequency.current if frequency is not None else math.nan
    return math.nan


def _pressure_s(kind: str) -> float:
    """Return seconds since boot for which some task waited for CPU, memory or storage."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((_PRESSURE / kind).read_text().splitlines()[0].rpartition("total=")[2]) / 1e6
    return math.nan
