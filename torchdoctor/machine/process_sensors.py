"""Counters of a process tree: processor time, memory, threads, switches, disk."""

import contextlib
import math
import time
from pathlib import Path
from typing import Any

import psutil

from torchdoctor.machine.processes import inner_pid

_COST_SHARE = 0.003  # of one CPU, that looking for new processes may take
_ERRORS = (psutil.Error, OSError)
_OF_EVERY = ("read_bytes", "write_bytes")
_UNKNOWN = ("pss_bytes", "queued_s", *_OF_EVERY)


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
        pid, before = process.pid, self._counters.get(process.pid)
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
