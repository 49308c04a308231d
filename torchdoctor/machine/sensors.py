"""Samples the machine beside the program: processor, memory, disk, GPU; on the step log's clock."""

import contextlib
import math
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from torchdoctor.machine import environment, nvml
from torchdoctor.machine.processes import inner_pid
from torchdoctor.machine.rapl import Rapl
from torchdoctor.machine.sensor_columns import SensorColumns

_COST_SHARE = 0.003  # of one CPU, that looking for new processes may take
_ERRORS = (psutil.Error, OSError)
_OF_EVERY = ("read_bytes", "write_bytes", "read_ops")
_UNKNOWN = ("pss_bytes", "queued_s", *_OF_EVERY)
PROCESS_INTERVAL_S = 0.5
COST_SHARE = 0.005  # of one CPU, for each of the two kinds of samples
_BUSY = ("user", "nice", "system", "irq", "softirq")  # guest time is part of user time already
_TREE_FIELDS = (
    "rss_bytes",
    "pss_bytes",
    "swap_bytes",
    "quota_stopped_s",
    "threads",
    "read_bytes",
    "write_bytes",
    "tree_cpu_s",
    "own_cpu_s",
    "network_bytes",
    "gpu_others",
)


class ProcessSensors:
    """Reads a process tree again and again, and looks for new processes as often as is cheap."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self.alive: dict[int, psutil.Process] = {root: self._root}  # by pid, as seen from here
        self._counters: dict[int, dict[str, float]] = {}  # last readings, also of those that ended
        self._inner: dict[int, int] = {}  # pids as the program itself sees them
        self._next_look_s = 0.0
        self._next_pss_s = 0.0

    def read(self) -> dict[str, Any] | None:
        """Return the sums now; None once no process is left."""
        began = time.monotonic()
        if began >= self._next_look_s:
            with contextlib.suppress(*_ERRORS):
                for child in self._root.children(recursive=True):
                    self.alive.setdefault(child.pid, child)
            self._next_look_s = self._next(began, 0.4)
        began = time.monotonic()
        with_pss = began >= self._next_pss_s
        for pid, process in list(self.alive.items()):
            try:
                self._read_process(process, with_pss)
            except _ERRORS:
                del self.alive[pid]
        if with_pss:
            self._next_pss_s = self._next(began, 1.0)
        return self._sums() if self.alive else None

    def _next(self, began_s: float, least_s: float) -> float:
        return began_s + max(least_s, (time.monotonic() - began_s) / _COST_SHARE)

    def _read_process(self, process: psutil.Process, with_pss: bool) -> None:
        pid = process.pid
        before = self._counters.get(process.pid)
        if before is None:
            self._inner[pid] = inner_pid(pid)
            before = dict.fromkeys(_UNKNOWN, math.nan)
            with_pss = True  # at once: a forked worker would count with all the memory it shares
        counters = before | _read(process)
        if with_pss and pid != self._root.pid:
            counters["pss_bytes"] = _pss_bytes(pid)
        self._counters[pid] = counters

    def _sums(self) -> dict[str, Any]:
        """Return sums under the names of `SensorColumns`, and `cpu_s` and `queued_s` by pid."""
        alive = [self._counters[pid] for pid in self.alive]
        every = self._counters
        return {
            "rss_bytes": sum(c["rss_bytes"] for c in alive),
            "pss_bytes": sum(_sum_measured([c["pss_bytes"]], c["rss_bytes"]) for c in alive),
            "threads": sum(c["threads"] for c in alive),
            # Of processes that ended the last reading stays in these sums.
            **{name: _sum_measured([c[name] for c in every.values()]) for name in _OF_EVERY},
            "tree_cpu_s": sum(c["cpu_s"] + c["children_cpu_s"] for c in alive),
            "cpu_s": {self._inner[pid]: c["cpu_s"] for pid, c in every.items()},
            "queued_s": {self._inner[pid]: c["queued_s"] for pid, c in every.items()},
        }


def _read(process: psutil.Process) -> dict[str, float]:
    """Return counters of one process since its start, as far as this machine has them."""
    with process.oneshot():
        times = process.cpu_times()
        counters = {
            "cpu_s": times.user + times.system,
            # Short-lived children are in here: so none is missed between two looks.
            "children_cpu_s": times.children_user + times.children_system,
            "rss_bytes": process.memory_info().rss,
            "threads": process.num_threads(),
        }
    with contextlib.suppress(*_ERRORS, AttributeError):
        disk = process.io_counters()
        counters["read_bytes"], counters["write_bytes"] = disk.read_bytes, disk.write_bytes
        counters["read_ops"] = disk.read_count
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Its first thread, ready to run, without a CPU.
        schedstat = Path(f"/proc/{process.pid}/schedstat").read_text()
        counters["queued_s"] = int(schedstat.split()[1]) / 1e9
    return counters


def _sum_measured(values: list[float], otherwise: float = math.nan) -> float:
    measured = [value for value in values if not math.isnan(value)]
    return sum(measured) if measured else otherwise


def _pss_bytes(pid: int) -> float:
    """Return memory with shared pages divided among those that share them; NaN: not measured."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return float(line.split()[1]) * 1024
    return math.nan


def busy_s() -> list[float]:
    """Return the seconds that each CPU was busy since boot."""
    cores = psutil.cpu_times(percpu=True)
    return [sum(getattr(core, name, 0.0) for name in _BUSY) for core in cores]


def _network_bytes() -> float:
    """Return what the machine sent and received, but over the loopback device; NaN: not known."""
    devices = psutil.net_io_counters(pernic=True).items()
    passed = [
        traffic.bytes_sent + traffic.bytes_recv
        for name, traffic in devices
        if not name.startswith("lo")
    ]
    return float(sum(passed)) if passed else math.nan


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
        self._uuids: list[str] = []  # of the devices
        self._columns: SensorColumns | None = None
        self._rapl = Rapl()

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
            columns = _columns(self._machine, self._trees, self._ours)
            self._columns = replace(columns, gpu_uuid=np.array(self._uuids, dtype=str))
        return self._columns

    def _run(self, root_pid: int) -> None:
        try:
            processes: ProcessSensors | None = ProcessSensors(root_pid)
        except psutil.Error:
            processes = None
        with nvml.session() as gpus:
            self._uuids = [nvml.uuid_of(device) or "" for device in gpus.devices] if gpus else []
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
                    self._read_tree(processes, gpus)
                    tree.spent(now)
                if not last:
                    self._ending.wait(max(0.001, machine.next_s - time.monotonic()))

    def _read_machine(self, gpus: nvml.Nvml | None) -> None:
        row: dict[str, Any] = {
            "t_ns": time.monotonic_ns(),
            "core_busy_s": busy_s(),
            "iowait_s": getattr(psutil.cpu_times(), "iowait", 0.0),
            "cpu_energy_j": self._rapl.read_j(),
        }
        for name in nvml.READINGS:
            row[f"gpu_{name}"] = (
                [gpus.read(name, device) for device in gpus.devices] if gpus else []
            )
        self._machine.append(row)

    def _read_tree(self, processes: ProcessSensors, gpus: nvml.Nvml | None) -> None:
        tree = processes.read()
        if tree is None:
            return
        tree["process_t_ns"] = time.monotonic_ns()
        tree["swap_bytes"] = psutil.swap_memory().used
        tree["quota_stopped_s"] = environment.quota_stopped_s()
        tree["network_bytes"] = _network_bytes()
        tree["own_cpu_s"] = sum(os.times()[:2])
        tree["gpu_others"] = [] if gpus is None else self._gpu_processes(gpus, processes)
        self._trees.append(tree)

    def _gpu_processes(self, gpus: nvml.Nvml, processes: ProcessSensors) -> list[float]:
        """Note the program's devices; return how many other processes compute on each device.

        To a container the driver may give numbers of its own instead of pids: then who computed
        there before the program began is another one, and who came since is the program.
        """
        running = [gpus.processes(device) for device in gpus.devices]
        strangers = []
        if self._before is None:
            self._before = [pids or set() for pids in running]
        alive = processes.alive.keys()
        for index, (pids, before) in enumerate(zip(running, self._before, strict=True)):
            computing = pids or set()
            if computing & alive or computing - before:
                self._ours.add(index)
            foreign = computing - alive if computing & alive else computing & before
            strangers.append(math.nan if pids is None else float(len(foreign)))
        return strangers


class _Pace:
    """When the next sample is due: after an interval, or later where sampling is expensive."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.next_s = 0.0

    def spent(self, began_s: float) -> None:
        cost = (time.monotonic() - began_s) / COST_SHARE
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
