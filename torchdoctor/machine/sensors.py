"""Samples the machine beside the program: processor, memory, disk, GPU; on the step log's clock."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from torchdoctor.machine import nvml
from torchdoctor.machine.process_sensors import ProcessSensors, TreeSample
from torchdoctor.machine.sensor_columns import SensorColumns

PROCESS_INTERVAL_S = 0.5
PCIE_INTERVAL_S = 2.0
COST_SHARE = 0.005  # of one CPU, for each of the two kinds of samples
_GPU_FIELDS = ("utilization", "memory_bytes", "power_w", "sm_clock_mhz", "throttle")
_TREE_FIELDS = (
    "rss_bytes", "pss_bytes", "threads", "switches", "forced_switches",
    "read_bytes", "write_bytes", "read_ops", "tree_cpu_s",
)  # fmt: skip


@dataclass(kw_only=True)
class _Samples:
    """Rows as they come in; turned into columns at the end."""

    t_ns: list[int] = field(default_factory=list)
    cores: list[list[float]] = field(default_factory=list)
    iowait: list[float] = field(default_factory=list)
    gpus: list[list[list[float]]] = field(default_factory=list)  # sample, field, device
    process_t_ns: list[int] = field(default_factory=list)
    trees: list[TreeSample] = field(default_factory=list)
    swap: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    pcie: list[tuple[float, float]] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    ours: set[int] = field(default_factory=set)  # devices that the program computes on


class Sensors:
    """A thread that samples from `start` to `stop`, at most once; it slows down where it costs.

    Args:
        interval_s: between two samples of machine and GPUs.
    """

    def __init__(self, interval_s: float = 0.1) -> None:
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples = _Samples()
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
            self._columns = _columns(self._samples)
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
        samples = self._samples
        cores, iowait = [], 0.0
        for core in psutil.cpu_times(percpu=True):
            waiting = getattr(core, "iowait", 0.0)
            # Guest time is part of user time already.
            cores.append(
                sum(getattr(core, name, 0.0) for name in ("user", "nice", "system", "irq"))
                + getattr(core, "softirq", 0.0)
            )
            iowait += waiting
        samples.t_ns.append(time.monotonic_ns())
        samples.cores.append(cores)
        samples.iowait.append(iowait)
        samples.gpus.append([] if gpus is None else _read_gpus(gpus))

    def _read_tree(
        self, processes: ProcessSensors, gpus: nvml.Nvml | None, with_pcie: bool
    ) -> None:
        tree = processes.read()
        if tree is None:
            return
        samples = self._samples
        samples.process_t_ns.append(time.monotonic_ns())
        samples.trees.append(tree)
        samples.swap.append(float(psutil.swap_memory().used))
        own = os.times()
        samples.own.append(own.user + own.system)
        samples.others.append(math.nan if gpus is None else self._gpu_processes(gpus, processes))
        samples.pcie.append(self._pcie(gpus) if gpus and with_pcie else (math.nan, math.nan))

    def _gpu_processes(self, gpus: nvml.Nvml, processes: ProcessSensors) -> float:
        """Note the program's devices; return how many other processes compute on some device."""
        strangers, known = 0, False
        for index, device in enumerate(gpus.devices):
            pids = gpus.processes(device)
            if pids is None:
                continue
            known = True
            if pids & processes.pids:
                self._samples.ours.add(index)
            strangers += len(pids - processes.pids)
        return float(strangers) if known else math.nan

    def _pcie(self, gpus: nvml.Nvml) -> tuple[float, float]:
        """Return traffic of one of the program's devices; it takes too long to ask every one."""
        devices = sorted(self._samples.ours) or list(range(len(gpus.devices)))
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


def _read_gpus(gpus: nvml.Nvml) -> list[list[float]]:
    rows = []
    for name in _GPU_FIELDS:
        read: Any = getattr(gpus, name)
        values = [read(device) for device in gpus.devices]
        rows.append([math.nan if value is None else float(value) for value in values])
    return rows


def _columns(samples: _Samples) -> SensorColumns:
    """Rows -> columns."""
    devices = max((len(row[0]) for row in samples.gpus if row), default=0)
    gpus = np.full((len(samples.t_ns), len(_GPU_FIELDS), devices), np.nan)
    for index, row in enumerate(samples.gpus):
        if row:
            gpus[index] = row
    pids = list(dict.fromkeys(pid for tree in samples.trees for pid in tree.cpu_s))
    cpu = [[tree.cpu_s.get(pid, math.nan) for pid in pids] for tree in samples.trees]
    queued = [[tree.queued_s.get(pid, math.nan) for pid in pids] for tree in samples.trees]
    sums = {
        name: np.array([getattr(tree, name) for tree in samples.trees], dtype=np.float64)
        for name in _TREE_FIELDS
    }
    # A process that ended and was not yet waited for is in no counter for a moment.
    sums["tree_cpu_s"] = np.maximum.accumulate(sums["tree_cpu_s"])
    pcie = np.array(samples.pcie, dtype=np.float64).reshape(len(samples.pcie), 2)
    cores = len(samples.cores[0]) if samples.cores else 0
    return SensorColumns(
        wall_offset_ns=np.array([time.time_ns() - time.monotonic_ns()], dtype=np.int64),
        t_ns=np.array(samples.t_ns, dtype=np.int64),
        core_busy_s=np.array(samples.cores, dtype=np.float64).reshape(len(samples.cores), cores),
        iowait_s=np.array(samples.iowait, dtype=np.float64),
        process_t_ns=np.array(samples.process_t_ns, dtype=np.int64),
        swap_bytes=np.array(samples.swap, dtype=np.float64),
        own_cpu_s=np.array(samples.own, dtype=np.float64),
        pcie_rx_bytes_per_s=pcie[:, 0],
        pcie_tx_bytes_per_s=pcie[:, 1],
        gpu_others=np.array(samples.others, dtype=np.float64),
        gpu_ours=np.array([float(i in samples.ours) for i in range(devices)]),
        process_pids=np.array(pids, dtype=np.int64),
        process_cpu_s=np.array(cpu, dtype=np.float64).reshape(len(cpu), len(pids)),
        process_queued_s=np.array(queued, dtype=np.float64).reshape(len(queued), len(pids)),
        **{f"gpu_{name}": gpus[:, index] for index, name in enumerate(_GPU_FIELDS)},
        **sums,
    )
