"""Samples the machine beside the program: processor, memory, disk, GPU; on the step log's clock."""

import math
import os
import threading
import time
from typing import Any

import numpy as np
import psutil

from torchdoctor.machine import nvml
from torchdoctor.machine.process_sensors import ProcessSensors
from torchdoctor.machine.sensor_columns import SensorColumns

PROCESS_INTERVAL_S = 0.5
_PCIE_EVERY = 4  # readings of processes
COST_SHARE = 0.005  # of one CPU, for each of the two kinds of samples
_BUSY = ("user", "nice", "system", "irq", "softirq")  # guest time is part of user time already
_SHORTEST_S = 1.0
_TREE_FIELDS = (
    *("rss_bytes", "pss_bytes", "swap_bytes", "threads", "switches", "forced_switches"),
    *("read_bytes", "write_bytes", "read_ops", "tree_cpu_s", "own_cpu_s"),
    *("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "gpu_others"),
)


def busy_s() -> list[float]:
    """Return the seconds that each CPU was busy since boot."""
    cores = psutil.cpu_times(percpu=True)
    return [sum(getattr(core, name, 0.0) for name in _BUSY) for core in cores]


class LoadBeside:
    """CPUs that others kept busy since it was made.

    To the sensors of a pair's launch the other one is a stranger; the kernel counts all of ours.
    """

    def __init__(self) -> None:
        self._began_s, self._before_s = time.monotonic(), self._used_s()

    def _used_s(self) -> float:
        return sum(busy_s()) - sum(os.times()[:4])  # without ours and our children's

    def cpus(self) -> float | None:
        """Return CPUs, on average, to be asked once all launches have ended; None: not known."""
        passed_s = time.monotonic() - self._began_s
        if passed_s < _SHORTEST_S or os.name == "nt":  # Windows counts no children
            return None
        return max(0.0, self._used_s() - self._before_s) / passed_s


class Sensors:
    """A thread that samples from `start` to `stop`, at most once; it slows down where it costs."""

    def __init__(self, interval_s: float = 0.1) -> None:
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._machine: list[dict[str, Any]] = []
        self._trees: list[dict[str, Any]] = []
        self._ours: set[int] = set()  # devices that the program computes on
        self._before: list[set[int]] | None = None  # pids on each when the program began
        self._columns: SensorColumns | None = None

    def start(self, root_pid: int) -> None:
        """Begin to sample the machine and the process tree below this pid."""
        self._thread = threading.Thread(target=self._run, args=(root_pid,), daemon=True)
        self._thread.start()

    def stop(self) -> SensorColumns:
        """End sampling. A second call answers the same; empty columns where it never began."""
        if self._columns is None:
            self._ending.set()
            if self._thread is not None:
                self._thread.join()
            self._columns = _columns(self._machine, self._trees, self._ours)
        return self._columns

    def _run(self, root_pid: int) -> None:
        try:
            processes: ProcessSensors | None = ProcessSensors(root_pid)
        except psutil.Error:
            processes = None
        with nvml.session() as gpus:
            machine = _Pace(self._interval_s)
            tree = _Pace(max(PROCESS_INTERVAL_S, self._interval_s))
            last = False
            while not last:
                last = self._ending.is_set()
                now = time.monotonic()
                if last or now >= machine.next_s:
                    self._read_machine(gpus)
                    machine.spent(now)
                now = time.monotonic()
                if processes is not None and (last or now >= tree.next_s):
                    with_pcie = gpus is not None and len(self._trees) % _PCIE_EVERY == 0
                    self._read_tree(processes, gpus, with_pcie)
                    # The driver sleeps while it counts PCIe traffic: time, but not ours.
                    tree.spent(now, free=with_pcie)
                if not last:
                    self._ending.wait(max(0.001, machine.next_s - time.monotonic()))

    def _read_machine(self, gpus: nvml.Nvml | None) -> None:
        row: dict[str, Any] = {
            "t_ns": time.monotonic_ns(),
            "core_busy_s": busy_s(),
            "iowait_s": getattr(psutil.cpu_times(), "iowait", 0.0),
        }
        for name in nvml.READINGS:
            row[f"gpu_{name}"] = [gpus.read(name, x) for x in gpus.devices] if gpus else []
        self._machine.append(row)

    def _read_tree(self, processes: ProcessSensors, gpus: nvml.Nvml | None, pcie: bool) -> None:
        tree = processes.read()
        if tree is None:
            return
        received, sent = math.nan, math.nan
        if gpus and pcie and gpus.devices:  # of one of the program's: all would take too long
            received, sent = gpus.pcie_bytes_per_s(gpus.devices[min(self._ours, default=0)])
        self._trees.append(
            {
                **tree,
                "process_t_ns": time.monotonic_ns(),
                "swap_bytes": psutil.swap_memory().used,
                "own_cpu_s": sum(os.times()[:2]),
                "gpu_others": [] if gpus is None else self._gpu_processes(gpus, processes),
                "pcie_rx_bytes_per_s": received,
                "pcie_tx_bytes_per_s": sent,
            }
        )

    def _gpu_processes(self, gpus: nvml.Nvml, processes: ProcessSensors) -> list[float]:
        """Note the program's devices; return how many other processes compute on each device.

        To a container the driver may give numbers of its own instead of pids: then who computed
        there before the program began is another one, and who came since is the program.
        """
        running, strangers = [gpus.processes(device) for device in gpus.devices], []
        if self._before is None:
            self._before = [pids or set() for pids in running]
        alive = processes.alive.keys()
        for index, (pids, before) in enumerate(zip(running, self._before, strict=True)):
            known = pids or set()
            if known & alive or known - before:
                self._ours.add(index)
            foreign = known - alive if known & alive else known & before
            strangers.append(math.nan if pids is None else float(len(foreign)))
        return strangers


class _Pace:
    """When the next sample is due: after an interval, or later where sampling is expensive."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.next_s = 0.0

    def spent(self, began_s: float, free: bool = False) -> None:
        cost = 0.0 if free else (time.monotonic() - began_s) / COST_SHARE
        # A hundredth of wall time at most: waiting for the interpreter lock counts too, so a
        # single slow sample must not switch the sensors off.
        self.next_s = began_s + max(self._interval_s, min(cost, 10 * self._interval_s))


def _columns(
    machine: list[dict[str, Any]], trees: list[dict[str, Any]], ours: set[int]
) -> SensorColumns:
    """Turn rows into columns; `ours`: devices that the program computes on."""

    def of(rows: list[dict[str, Any]], name: str) -> np.ndarray:
        kind = np.int64 if name.endswith("t_ns") else np.float64
        return np.array([row[name] for row in rows], dtype=kind)

    columns: dict[str, np.ndarray] = {}
    if machine:
        columns = {name: of(machine, name) for name in machine[0]}
        devices = range(columns["gpu_utilization"].shape[1])
        columns["gpu_ours"] = np.array([float(device in ours) for device in devices])
    if trees:
        columns |= {name: of(trees, name) for name in ("process_t_ns", *_TREE_FIELDS)}
        # A process that ended and was not yet waited for is in no counter for a moment.
        columns["tree_cpu_s"] = np.maximum.accumulate(columns["tree_cpu_s"])
        pids = list(dict.fromkeys(pid for tree in trees for pid in tree["cpu_s"]))
        columns["process_pids"] = np.array(pids, dtype=np.int64)
        for name in ("cpu_s", "queued_s"):
            rows = [[tree[name].get(pid, math.nan) for pid in pids] for tree in trees]
            columns["process_" + name] = np.array(rows, dtype=np.float64)
    offset_ns = np.array([time.time_ns() - time.monotonic_ns()], dtype=np.int64)
    return SensorColumns(wall_offset_ns=offset_ns, **columns)
