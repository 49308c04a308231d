"""Samples the machine beside the program: processor, memory, disk, GPU; on the step log's clock."""

from __future__ import annotations

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
PCIE_INTERVAL_S = 2.0
COST_SHARE = 0.005  # of one CPU, for each of the two kinds of samples
_BUSY = ("user", "nice", "system", "irq", "softirq")
_OF_GPUS = ("utilization", "memory_bytes", "power_w", "sm_clock_mhz", "throttle")
_GPU_FIELDS = tuple("gpu_" + name for name in _OF_GPUS)
_TREE_FIELDS = (
    *("process_t_ns", "rss_bytes", "pss_bytes", "swap_bytes", "threads", "switches"),
    *("forced_switches", "read_bytes", "write_bytes", "read_ops", "tree_cpu_s", "own_cpu_s"),
    *("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "gpu_others"),
)


class Sensors:
    """A thread that samples from `start` to `stop`, at most once; it slows down where it costs.

    Args:
        interval_s: between two samples of machine and GPUs.
    """

    def __init__(self, interval_s: float = 0.1) -> None:
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._machine: list[dict[str, Any]] = []
        self._trees: list[dict[str, Any]] = []
        self._ours: set[int] = set()  # devices that the program computes on
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
            pcie = _Pace(PCIE_INTERVAL_S)
            while True:
                last = self._ending.is_set()
                now = time.monotonic()
                if machine.due(now) or last:
                    self._read_machine(gpus)
                    machine.spent(now)
                now = time.monotonic()
                if processes is not None and (tree.due(now) or last):
                    with_pcie = pcie.due(now)
                    self._read_tree(processes, gpus, with_pcie)
                    # The driver sleeps while it counts PCIe traffic: time, but not ours.
                    tree.spent(now, free=with_pcie and gpus is not None)
                    if with_pcie:
                        pcie.spent(now, free=True)
                if last:
                    return
                self._ending.wait(max(0.001, machine.next_s - time.monotonic()))

    def _read_machine(self, gpus: nvml.Nvml | None) -> None:
        cores = psutil.cpu_times(percpu=True)
        row: dict[str, Any] = {
            "t_ns": time.monotonic_ns(),
            # Guest time is part of user time already.
            "core_busy_s": [sum(getattr(core, x, 0.0) for x in _BUSY) for core in cores],
            "iowait_s": sum(getattr(core, "iowait", 0.0) for core in cores),
        }
        for name in _GPU_FIELDS:
            row[name] = [] if gpus is None else _of_devices(gpus, name.removeprefix("gpu_"))
        self._machine.append(row)

    def _read_tree(
        self, processes: ProcessSensors, gpus: nvml.Nvml | None, with_pcie: bool
    ) -> None:
        tree = processes.read()
        if tree is None:
            return
        tree["process_t_ns"] = time.monotonic_ns()
        tree["swap_bytes"] = psutil.swap_memory().used
        own = os.times()
        tree["own_cpu_s"] = own.user + own.system
        tree["gpu_others"] = math.nan if gpus is None else self._gpu_processes(gpus, processes)
        traffic = self._pcie(gpus) if gpus and with_pcie else (math.nan, math.nan)
        tree["pcie_rx_bytes_per_s"], tree["pcie_tx_bytes_per_s"] = traffic
        self._trees.append(tree)

    def _gpu_processes(self, gpus: nvml.Nvml, processes: ProcessSensors) -> float:
        """Note the program's devices; return how many other processes compute on some device."""
        strangers, known = 0, False
        for index, device in enumerate(gpus.devices):
            pids = gpus.processes(device)
            if pids is None:
                continue
            known = True
            if pids & processes.pids:
                self._ours.add(index)
            strangers += len(pids - processes.pids)
        return float(strangers) if known else math.nan

    def _pcie(self, gpus: nvml.Nvml) -> tuple[float, float]:
        """Return traffic of one of the program's devices; it takes too long to ask every one."""
        devices = sorted(self._ours) or list(range(len(gpus.devices)))
        traffic = gpus.pcie_bytes_per_s(gpus.devices[devices[0]]) if devices else None
        return traffic or (math.nan, math.nan)


class _Pace:
    """When the next sample is due: after an interval, or later where sampling is expensive."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.next_s = 0.0

    def due(self, now_s: float) -> bool:
        return now_s >= self.next_s

    def spent(self, began_s: float, free: bool = False) -> None:
        cost = 0.0 if free else (time.monotonic() - began_s) / COST_SHARE
        # A hundredth of wall time at most: waiting for the interpreter lock counts too, so a
        # single slow sample must not switch the sensors off.
        self.next_s = began_s + max(self._interval_s, min(cost, 10 * self._interval_s))


def _of_devices(gpus: nvml.Nvml, name: str) -> list[float]:
    values = [getattr(gpus, name)(device) for device in gpus.devices]
    return [math.nan if value is None else float(value) for value in values]


def _columns(
    machine: list[dict[str, Any]], trees: list[dict[str, Any]], ours: set[int]
) -> SensorColumns:
    """Turn rows into columns; `ours`: devices that the program computes on."""

    def column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
        kind = np.int64 if name.endswith("t_ns") else np.float64
        return np.array([row[name] for row in rows], dtype=kind)

    def table(rows: list[list[float]], width: int) -> np.ndarray:
        return np.array(rows, dtype=np.float64).reshape(len(rows), width)

    first = machine[0] if machine else {name: [] for name in ("core_busy_s", *_GPU_FIELDS)}
    tables = {
        name: table([row[name] for row in machine], len(first[name]))
        for name in ("core_busy_s", *_GPU_FIELDS)
    }
    pids = list(dict.fromkeys(pid for tree in trees for pid in tree["cpu_s"]))
    for name in ("cpu_s", "queued_s"):
        rows = [[tree[name].get(pid, math.nan) for pid in pids] for tree in trees]
        tables["process_" + name] = table(rows, len(pids))
    sums = {name: column(trees, name) for name in _TREE_FIELDS}
    # A process that ended and was not yet waited for is in no counter for a moment.
    sums["tree_cpu_s"] = np.maximum.accumulate(sums["tree_cpu_s"])
    devices = len(first["gpu_utilization"])
    return SensorColumns(
        wall_offset_ns=np.array([time.time_ns() - time.monotonic_ns()], dtype=np.int64),
        t_ns=column(machine, "t_ns"),
        iowait_s=column(machine, "iowait_s"),
        gpu_ours=np.array([float(i in ours) for i in range(devices)]),
        process_pids=np.array(pids, dtype=np.int64),
        **tables,
        **sums,
    )
