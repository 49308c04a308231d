"""The sensors' measurements as columns, and their summary for a stretch of time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.machine.nvml import THROTTLE_REASONS
from torchdoctor.machine.usable_cpus import affinity, cpu_quota
from torchdoctor.words import SensorStatistics

Columns = NDArray[np.float64]

_STEADY = 0.25  # of the mean rise: what grows with each step rises by as much in each quarter


def _empty(*shape: int) -> Columns:
    return np.zeros(shape, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class SensorColumns:
    """Samples of one launch. Times are `time.monotonic_ns()`; NaN is "not measured".

    Two clocks: the machine and its GPUs are read often (`t_ns`, n samples), processes less often
    (`process_t_ns`, m samples). Names in `_s` without a rate are seconds of CPU since the start.

    core_busy_s: (n, cores); iowait_s: (n,); gpu_*: (n, devices), `gpu_throttle` bits.
    rss_bytes, pss_bytes (children by their proportional share), swap_bytes, threads, switches,
    forced_switches, read_bytes, write_bytes, read_ops: (m,) over the whole process tree;
    tree_cpu_s, own_cpu_s: (m,); process_cpu_s, process_queued_s (ready to run, without a CPU):
    (m, processes) with pids, as the program sees them, in `process_pids`; pcie_*: (m,), bytes per
    second; gpu_others: (m,). wall_offset_ns: (1,), what a time lacks to the wall clock's
    (`time.time_ns()`).
    """

    wall_offset_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    t_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    core_busy_s: Columns = field(default_factory=lambda: _empty(0, 0))
    iowait_s: Columns = field(default_factory=lambda: _empty(0))
    gpu_utilization: Columns = field(default_factory=lambda: _empty(0, 0))
    gpu_memory_bytes: Columns = field(default_factory=lambda: _empty(0, 0))
    gpu_power_w: Columns = field(default_factory=lambda: _empty(0, 0))
    gpu_sm_clock_mhz: Columns = field(default_factory=lambda: _empty(0, 0))
    gpu_throttle: Columns = field(default_factory=lambda: _empty(0, 0))
    process_t_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rss_bytes: Columns = field(default_factory=lambda: _empty(0))
    pss_bytes: Columns = field(default_factory=lambda: _empty(0))
    swap_bytes: Columns = field(default_factory=lambda: _empty(0))
    threads: Columns = field(default_factory=lambda: _empty(0))
    switches: Columns = field(default_factory=lambda: _empty(0))
    forced_switches: Columns = field(default_factory=lambda: _empty(0))
    read_bytes: Columns = field(default_factory=lambda: _empty(0))
    write_bytes: Columns = field(default_factory=lambda: _empty(0))
    read_ops: Columns = field(default_factory=lambda: _empty(0))
    tree_cpu_s: Columns = field(default_factory=lambda: _empty(0))
    own_cpu_s: Columns = field(default_factory=lambda: _empty(0))
    pcie_rx_bytes_per_s: Columns = field(default_factory=lambda: _empty(0))
    pcie_tx_bytes_per_s: Columns = field(default_factory=lambda: _empty(0))
    gpu_others: Columns = field(default_factory=lambda: _empty(0))
    gpu_ours: Columns = field(default_factory=lambda: _empty(0))  # (devices,), 1: the program's
    process_pids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    process_cpu_s: Columns = field(default_factory=lambda: _empty(0, 0))
    process_queued_s: Columns = field(default_factory=lambda: _empty(0, 0))

    def save(self, path: Path) -> None:
        """Write them as a compressed .npz file."""
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        with path.open("wb") as file:
            np.savez_compressed(file, **columns)

    @classmethod
    def load(cls, path: Path) -> SensorColumns:
        """Read what `save` wrote."""
        with np.load(path) as stored:
            return cls(**{f.name: stored[f.name] for f in fields(cls) if f.name in stored})

    def peak_memory_bytes(self) -> int | None:
        """Return the tree's memory at its highest; what processes share counts once or so."""
        return _whole(_most(self.memory_bytes))

    @property
    def memory_bytes(self) -> Columns:
        """Return proportional shares where they are known, else resident memory."""
        return np.where(np.isnan(self.pss_bytes), self.rss_bytes, self.pss_bytes)

    def statistics(
        self, begin_ns: int, end_ns: int, main_pid: int | None = None
    ) -> SensorStatistics:
        """Return a summary of the time between two stamps, or of what of it was sampled.

        Args:
            main_pid: the training process, by its pid as it sees it; None: the launch's first.
        """
        if len(self.t_ns) < 2 or end_ns <= begin_ns:
            return SensorStatistics()
        return _Window(self, begin_ns, end_ns, main_pid).statistics()


class _Window:
    """One stretch of time of the columns."""

    def __init__(
        self, columns: SensorColumns, begin_ns: int, end_ns: int, main_pid: int | None
    ) -> None:
        self.columns = columns
        self.begin = begin_ns
        self.end = end_ns
        t = columns.t_ns
        self.inside = (t >= begin_ns) & (t <= end_ns)
        self.processes = (columns.process_t_ns >= begin_ns) & (columns.process_t_ns <= end_ns)
        self.main = self._main_column(main_pid)

    def _main_column(self, pid: int | None) -> int | None:
        pids: list[int] = self.columns.process_pids.tolist()
        if pid is not None and pid in pids:
            return pids.index(pid)
        return 0 if pids else None

    def statistics(self) -> SensorStatistics:
        c = self.columns
        cores = self._per_core()
        tree = self._process_rate(c.tree_cpu_s)
        main = None if self.main is None else self._process_rate(c.process_cpu_s[:, self.main])
        own = self._process_rate(c.own_cpu_s)
        return SensorStatistics(
            samples=int(self.inside.sum()),
            window_s=(self.end - self.begin) / 1e9,
            cpu_share=_cpu_share(cores, tree, own),
            cpu_per_core=[round(float(x), 4) for x in cores],
            program_cpus=tree,
            main_process_cpus=main,
            workers_cpus=None if tree is None or main is None else max(0.0, tree - main),
            workers_queued_cpus=self._workers_queued(),
            other_load_cpus=_others(cores, tree, own),
            iowait_share=self._iowait_share(len(cores)),
            rss_peak_bytes=_whole(_most(c.rss_bytes[self.processes])),
            memory_peak_bytes=_whole(_most(c.memory_bytes[self.processes])),
            rss_growth_bytes_per_s=self._slope(c.rss_bytes),
            swap_used_bytes=_whole(_most(c.swap_bytes[self.processes])),
            context_switches_per_s=self._process_rate(c.switches),
            involuntary_switches_per_s=self._process_rate(c.forced_switches),
            threads=_whole(_most(c.threads[self.processes])),
            read_bytes_per_s=self._process_rate(c.read_bytes),
            write_bytes_per_s=self._process_rate(c.write_bytes),
            read_ops_per_s=self._process_rate(c.read_ops),
            pcie_rx_bytes_per_s=_mean(c.pcie_rx_bytes_per_s[self.processes]),
            pcie_tx_bytes_per_s=_mean(c.pcie_tx_bytes_per_s[self.processes]),
            gpu_other_processes=_whole(_most(c.gpu_others[self.processes])),
            **self._gpu(),
        )

    def _gpu(self) -> dict[str, Any]:
        c = self.columns
        ours = c.gpu_ours > 0
        chosen = ours if ours.any() else np.ones(len(ours), dtype=bool)
        utilization = _across(c.gpu_utilization[self.inside][:, chosen], np.nanmean)
        memory = _across(c.gpu_memory_bytes[self.inside][:, chosen], np.nanmax)
        return {
            "gpu_utilization": _mean(utilization),
            "gpu_utilization_p5": _quantile(utilization, 0.05),
            "gpu_utilization_p95": _quantile(utilization, 0.95),
            "gpu_memory_peak_bytes": _whole(_most(memory)),
            "gpu_power_w": _mean(_across(c.gpu_power_w[self.inside][:, chosen], np.nanmean)),
            "gpu_sm_clock_mhz": _mean(
                _across(c.gpu_sm_clock_mhz[self.inside][:, chosen], np.nanmean)
            ),
            "gpu_throttle": _throttle(c.gpu_throttle[self.inside][:, chosen]),
        }

    def _rate(self, t_ns: NDArray[np.int64], cumulative: Columns) -> float | None:
        """Return the increase per second in the window, or between the outermost samples."""
        valid = ~np.isnan(cumulative)
        t, values = t_ns[valid], cumulative[valid]
        if len(t) < 2:
            return None
        begin, end = max(self.begin, int(t[0])), min(self.end, int(t[-1]))
        if end <= begin:
            return None
        low, high = np.interp([begin, end], t, values)
        return max(0.0, float(high - low)) / ((end - begin) / 1e9)

    def _process_rate(self, cumulative: Columns) -> float | None:
        return self._rate(self.columns.process_t_ns, cumulative)

    def _workers_queued(self) -> float | None:
        """Return None where there are no other processes, or the system does not count it."""
        queued = self.columns.process_queued_s
        workers = [at for at in range(queued.shape[1]) if at != self.main]
        rates = [self._process_rate(queued[:, at]) for at in workers]
        # One that was read once only lived too short to tell.
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    def _per_core(self) -> list[float]:
        busy = self.columns.core_busy_s
        rates = [self._rate(self.columns.t_ns, busy[:, core]) for core in range(busy.shape[1])]
        return [] if any(r is None for r in rates) else [min(1.0, r or 0.0) for r in rates]

    def _iowait_share(self, cores: int) -> float | None:
        rate = self._rate(self.columns.t_ns, self.columns.iowait_s)
        return None if rate is None or not cores else min(1.0, rate / cores)

    def _slope(self, values: Columns) -> float | None:
        t, y = self.columns.process_t_ns[self.processes] / 1e9, values[self.processes]
        valid = ~np.isnan(y)
        if valid.sum() < 3 or np.ptp(t[valid]) <= 0:
            return None
        return _steady_growth(t[valid], y[valid])


def _steady_growth(t: Columns, values: Columns) -> float:
    """Return growth a second of the least of each quarter; 0 where one rises unlike the others.

    One evaluation of larger batches, or an allocator that warms up, has a slope as well; a cache
    that fills in one quarter hides no leak in the others.
    """
    parts = min(4, len(values))
    floors = np.array([part.min() for part in np.array_split(values, parts)])
    times = np.array([part.mean() for part in np.array_split(t, parts)])
    rates = np.diff(floors) / np.diff(times)
    typical = float(np.median(rates))
    return typical if rates.min() > 0 and rates.min() >= _STEADY * typical else min(typical, 0.0)


def _cpu_share(cores: list[float], tree: float | None, own: float | None) -> float | None:
    """Of the CPUs that may be used; a quota below the number of CPUs counts our own use alone."""
    usable = affinity()
    quota = cpu_quota()
    if quota is not None and quota < len(usable):
        return None if tree is None else min(1.0, (tree + (own or 0.0)) / quota)
    shown = [cores[core] for core in usable if core < len(cores)]
    return sum(shown) / len(shown) if shown else None


def _others(cores: list[float], tree: float | None, own: float | None) -> float | None:
    if not cores or tree is None:
        return None
    return max(0.0, sum(cores) - tree - (own or 0.0))


def _across(values: Columns, combine: Callable[..., Columns]) -> Columns:
    """Return one value a sample out of one for each device; NaN where no device gave any."""
    measured = ~np.isnan(values).all(axis=1) if values.size else np.zeros(len(values), dtype=bool)
    result = np.full(len(values), np.nan)
    if measured.any():
        result[measured] = combine(values[measured], axis=1)
    return result


def _throttle(bits: Columns) -> list[str]:
    """Return reasons, each with its share of the samples, e.g. "power cap 35 %"."""
    measured = bits[~np.isnan(bits)].astype(np.int64)
    if not len(measured):
        return []
    shares = {name: float(((measured & bit) != 0).mean()) for bit, name in THROTTLE_REASONS.items()}
    return [f"{name} {share * 100:.0f} %" for name, share in shares.items() if share > 0]


def _most(values: Columns) -> float | None:
    valid = values[~np.isnan(values)]
    return float(valid.max()) if len(valid) else None


def _mean(values: Columns) -> float | None:
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else None


def _quantile(values: Columns, q: float) -> float | None:
    valid = values[~np.isnan(values)]
    return float(np.quantile(valid, q)) if len(valid) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
