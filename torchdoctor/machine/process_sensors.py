"""Counters of a process tree: processor time, memory, threads, switches, disk."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from torchdoctor.machine.processes import inner_pid

_ERRORS = (psutil.Error, OSError)
_OF_EVERY = ("switches", "forced_switches", "read_bytes", "write_bytes", "read_ops")


@dataclass(kw_only=True)
class ProcessCounters:
    """Counters of one process at its last reading, since its start."""

    pid: int  # as the program itself sees it
    cpu_s: float = 0.0
    ended_children_cpu_s: float = 0.0
    rss_bytes: int = 0
    pss_bytes: float = math.nan
    threads: int = 0
    switches: int = 0
    forced_switches: int = 0
    queued_s: float = math.nan  # its first thread, ready to run, without a CPU
    read_bytes: float = math.nan
    write_bytes: float = math.nan
    read_ops: float = math.nan

    def memory_bytes(self) -> float:
        """Return the proportional share where it is known, else resident memory."""
        return self.rss_bytes if math.isnan(self.pss_bytes) else self.pss_bytes

    def read(self, process: psutil.Process, with_pss: bool) -> None:
        """Read the counters of the process again, as far as this machine has them."""
        with process.oneshot():
            times = process.cpu_times()
            self.cpu_s = times.user + times.system
            # Short-lived children are in here: so none is missed between two looks.
            self.ended_children_cpu_s = times.children_user + times.children_system
            self.rss_bytes = process.memory_info().rss
            self.threads = process.num_threads()
            switches = process.num_ctx_switches()
            self.switches = switches.voluntary + switches.involuntary
            self.forced_switches = switches.involuntary
        with contextlib.suppress(*_ERRORS, AttributeError):
            disk = process.io_counters()
            self.read_bytes, self.write_bytes = disk.read_bytes, disk.write_bytes
            self.read_ops = disk.read_count
        with contextlib.suppress(OSError, ValueError, IndexError):
            schedstat = Path(f"/proc/{process.pid}/schedstat").read_text()
            self.queued_s = int(schedstat.split()[1]) / 1e9
        if with_pss:
            self.pss_bytes = _pss_bytes(process.pid)


class ProcessSensors:
    """Reads a process tree again and again.

    The list of its processes costs a look at every process of the machine, so it is renewed less
    often than the counters are read where that is expensive.

    Args:
        root: pid of the tree's first process, as seen here.
        cost_share: of one CPU, that looking for new processes may take.
    """

    def __init__(self, root: int, cost_share: float = 0.003) -> None:
        self._cost_share = cost_share
        self._root = psutil.Process(root)
        self._alive: dict[int, psutil.Process] = {root: self._root}
        self._counters: dict[int, ProcessCounters] = {}
        self._next_look_s = 0.0
        self._next_pss_s = 0.0

    @property
    def pids(self) -> set[int]:
        """Return those alive, as seen from here."""
        return set(self._alive)

    def read(self) -> dict[str, Any] | None:
        """Return the sums now; None once no process is left."""
        self._look()
        with_pss = time.monotonic() >= self._next_pss_s
        began = time.monotonic()
        for pid, process in list(self._alive.items()):
            try:
                self._read_one(process, with_pss and pid != self._root.pid)
            except _ERRORS:
                del self._alive[pid]
        if with_pss:
            spent = time.monotonic() - began
            self._next_pss_s = began + max(1.0, spent / self._cost_share)
        return self._sum() if self._alive else None

    def _look(self) -> None:
        began = time.monotonic()
        if began < self._next_look_s:
            return
        with contextlib.suppress(*_ERRORS):
            for child in self._root.children(recursive=True):
                self._alive.setdefault(child.pid, child)
        spent = time.monotonic() - began
        self._next_look_s = began + max(0.4, spent / self._cost_share)

    def _read_one(self, process: psutil.Process, with_pss: bool) -> None:
        counters = self._counters.get(process.pid)
        if counters is None:
            counters = self._counters[process.pid] = ProcessCounters(pid=inner_pid(process.pid))
            # At once: a forked worker would count with all the memory that it shares.
            with_pss = process.pid != self._root.pid
        counters.read(process, with_pss)

    def _sum(self) -> dict[str, Any]:
        """Return sums under the names of `SensorColumns`, and `cpu_s` and `queued_s` by pid."""
        alive = [self._counters[pid] for pid in self._alive]
        every = list(self._counters.values())
        return {
            "rss_bytes": sum(c.rss_bytes for c in alive),
            "pss_bytes": sum(c.memory_bytes() for c in alive),
            "threads": sum(c.threads for c in alive),
            # Of processes that ended the last reading stays in these sums.
            **{name: _sum_measured([getattr(c, name) for c in every]) for name in _OF_EVERY},
            "tree_cpu_s": sum(c.cpu_s + c.ended_children_cpu_s for c in alive),
            "cpu_s": {c.pid: c.cpu_s for c in every},
            "queued_s": {c.pid: c.queued_s for c in every},
        }


def _sum_measured(values: list[float]) -> float:
    measured = [value for value in values if not math.isnan(value)]
    return sum(measured) if measured else math.nan


def _pss_bytes(pid: int) -> float:
    """Return memory with shared pages divided among those that share them; NaN: not measured."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return float(line.split()[1]) * 1024
    return math.nan
