"""The sensors' measurements as columns, their summary for a stretch of time, and their curves."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.machine.environment import affinity, cpu_quota
from torchdoctor.machine.nvml import THROTTLE_REASONS
from torchdoctor.schema import SensorStatistics, Throttling

Columns = NDArray[np.float64]
Times = NDArray[np.int64]

_OF_A_GPU = (
    "gpu_utilization",
    "gpu_memory_bytes",
    "gpu_power_w",
    "gpu_energy_j",
    "gpu_sm_clock_mhz",
    "gpu_throttle",
    "gpu_others",
)
_STEADY = 0.25  # of the mean rise: what grows with each step rises by as much in each quarter
_RATE_INTERVAL_NS = 500_000_000  # the system counts CPU time in hundredths of a second
_times: Callable[[], Times] = partial(np.array, (), dtype=np.int64)
_column = partial(np.zeros, 0)
_names: Callable[[], NDArray[np.str_]] = partial(np.array, (), dtype=str)
_table = partial(np.zeros, (0, 0))


@dataclass(frozen=True, kw_only=True)
class SensorColumns:
    """Samples of one launch. Times are `time.monotonic_ns()`; NaN is "not measured".

    The machine is read often (`t_ns`, n samples), the program's process tree less often
    (`process_t_ns`, m samples). Names in `_s` are seconds of CPU since the start.
    """

    wall_offset_ns: Times = field(default_factory=_times)  # (1,), to time.time_ns()
    t_ns: Times = field(default_factory=_times)  # (n,)
    core_busy_s: Columns = field(default_factory=_table)  # (n, cores)
    iowait_s: Columns = field(default_factory=_column)  # (n,)
    cpu_energy_j: Columns = field(default_factory=_column)  # of all packages, since the start
    gpu_utilization: Columns = field(default_factory=_table)  # (n, devices), as all gpu_*
    gpu_memory_bytes: Columns = field(default_factory=_table)
    gpu_power_w: Columns = field(default_factory=_table)
    gpu_energy_j: Columns = field(default_factory=_table)  # since the driver was loaded
    gpu_sm_clock_mhz: Columns = field(default_factory=_table)
    gpu_throttle: Columns = field(default_factory=_table)  # bits of THROTTLE_REASONS
    gpu_ours: Columns = field(default_factory=_column)  # (devices,), 1: the program's
    gpu_uuid: NDArray[np.str_] = field(default_factory=_names)  # (devices,), "": not known
    process_t_ns: Times = field(default_factory=_times)  # (m,), as all below
    rss_bytes: Columns = field(default_factory=_column)
    pss_bytes: Columns = field(default_factory=_column)  # children by their proportional share
    swap_bytes: Columns = field(default_factory=_column)
    quota_stopped_s: Columns = field(default_factory=_column)  # since the cgroup was made
    threads: Columns = field(default_factory=_column)
    read_bytes: Columns = field(default_factory=_column)
    write_bytes: Columns = field(default_factory=_column)
    network_bytes: Columns = field(default_factory=_column)  # of the machine, both ways
    tree_cpu_s: Columns = field(default_factory=_column)
    own_cpu_s: Columns = field(default_factory=_column)  # torchdoctor's
    gpu_others: Columns = field(default_factory=_table)  # (m, devices), other processes on them
    process_pids: Times = field(default_factory=_times)  # (processes,), as the program sees them
    process_cpu_s: Columns = field(default_factory=_table)  # (m, processes)
    process_queued_s: Columns = field(default_factory=_table)  # ready to run, without a CPU

    def save(self, path: Path) -> None:
        """Write them as a compressed .npz file."""
        with path.open("wb") as file:
            np.savez_compressed(file, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: Path) -> "SensorColumns":
        """Read what `save` wrote."""
        with np.load(path) as stored:
            return cls(**{f.name: stored[f.name] for f in fields(cls) if f.name in stored})

    def of_devices(self, uuids: Collection[str | None]) -> "SensorColumns":
        """Return them with the program's devices as its torch names them, where all are known.

        The driver's order is not CUDA's, and to a container it may name no process. Of a slice of
        a GPU (MIG) it tells nothing: then no device is the program's, and nothing is measured.
        """
        known_uuids = [uuid for uuid in uuids if uuid is not None]
        if not known_uuids or len(known_uuids) < len(uuids) or "" in self.gpu_uuid:
            return self
        ours = np.isin(self.gpu_uuid, known_uuids).astype(np.float64)
        if ours.any() or not len(ours):
            return replace(self, gpu_ours=ours)
        unknown = {name: np.full(getattr(self, name).shape, np.nan) for name in _OF_A_GPU}
        return replace(self, **unknown)

    def peak_memory_bytes(self) -> int | None:
        """Return the tree's memory at its highest; what processes share counts once or so."""
        return _most(self.memory_bytes)

    @property
    def memory_bytes(self) -> Columns:
        """Return proportional shares where they are known, else resident memory."""
        return np.where(np.isnan(self.pss_bytes), self.rss_bytes, self.pss_bytes)

    def use_of_cpus(self) -> tuple[Times, Columns, float]:
        """Return times, CPU seconds by then, and usable CPUs; below a quota our own use counts."""
        usable = affinity()
        quota = cpu_quota()
        if quota is not None and quota < len(usable):
            return self.process_t_ns, self.tree_cpu_s + np.nan_to_num(self.own_cpu_s), quota
        shown = [core for core in usable if core < self.core_busy_s.shape[1]]
        return self.t_ns, self.core_busy_s[:, shown].sum(axis=1), float(len(shown))

    def statistics(
        self, begin_ns: int, end_ns: int, main_pid: int | None = None
    ) -> SensorStatistics:
        """Return a summary of the time between two stamps; `main_pid`: as the process sees it."""
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
        process_t = columns.process_t_ns
        self.inside = (t >= begin_ns) & (t <= end_ns)
        self.processes = (process_t >= begin_ns) & (process_t <= end_ns)
        pids: list[int | None] = columns.process_pids.tolist()
        self.main = pids.index(main_pid) if main_pid in pids else 0 if pids else None

    def statistics(self) -> SensorStatistics:
        c = self.columns
        rates = [self._rate(c.t_ns, busy) for busy in c.core_busy_s.T]
        cores = [] if None in rates else [min(1.0, rate or 0.0) for rate in rates]
        tree = self._process_rate(c.tree_cpu_s)
        own_cpus = self._process_rate(c.own_cpu_s)
        main = None if self.main is None else self._process_rate(c.process_cpu_s[:, self.main])
        iowait = self._rate(c.t_ns, c.iowait_s)
        t_ns, used_s, cpus = c.use_of_cpus()
        used = self._rate(t_ns, used_s)
        return SensorStatistics(
            samples=int(self.inside.sum()),
            window_s=(self.end - self.begin) / 1e9,
            cpu_share=None if used is None or not cpus else min(1.0, used / cpus),
            workers_cpus=None if tree is None or main is None else max(0.0, tree - main),
            workers_queued_cpus=self._workers_queued(),
            other_load_cpus=(
                max(0.0, sum(cores) - tree - (own_cpus or 0.0))
                if cores and tree is not None
                else None
            ),
            iowait_share=None if iowait is None or not cores else min(1.0, iowait / len(cores)),
            quota_stopped_s=self._process_rate(c.quota_stopped_s),
            rss_peak_bytes=_most(c.rss_bytes[self.processes]),
            memory_peak_bytes=_most(c.memory_bytes[self.processes]),
            rss_growth_bytes_per_s=self._growth(c.rss_bytes),
            swap_used_bytes=_most(c.swap_bytes[self.processes]),
            threads=_most(c.threads[self.processes]),
            read_bytes_per_s=self._process_rate(c.read_bytes),
            cpu_energy_j=self._energy_j([c.cpu_energy_j]),
            **self._gpu(),
        )

    def _gpu(self) -> dict[str, Any]:
        c = self.columns
        ours = c.gpu_ours > 0
        chosen = ours if ours.any() else np.ones(len(ours), dtype=bool)

        def of_ours(values: Columns, combine: Callable[..., Any] = np.nanmean) -> Columns:
            return _across(values[self.inside][:, chosen], combine)

        used = of_ours(c.gpu_utilization)
        strangers = c.gpu_others[self.processes]
        return {
            "gpu_other_processes": _most(_across(strangers, np.nansum)),
            "gpu_sharing_processes": _most(_across(strangers[:, chosen], np.nanmax)),
            "gpu_utilization": _of_valid(used, np.mean),
            "gpu_memory_peak_bytes": _most(of_ours(c.gpu_memory_bytes, np.nanmax)),
            "gpu_power_w": _of_valid(of_ours(c.gpu_power_w), np.mean),
            # Of nobody's device the energy is not the program's.
            "gpu_energy_j": self._energy_j(c.gpu_energy_j.T[ours]) if c.gpu_energy_j.size else None,
            "gpu_sm_clock_mhz": _of_valid(of_ours(c.gpu_sm_clock_mhz), np.mean),
            "gpu_throttle": _throttle(c.gpu_throttle[self.inside][:, chosen]),
        }

    def _energy_j(self, counters: Iterable[Columns]) -> float | None:
        """Return the energy of the window by these counters; None: one of them was not read."""
        watts = [
            self._rate(self.columns.t_ns, counter) if len(counter) else None for counter in counters
        ]
        known_watts = [watt for watt in watts if watt is not None]
        whole = bool(known_watts) and len(known_watts) == len(watts)
        return sum(known_watts) * (self.end - self.begin) / 1e9 if whole else None

    def _rate(self, t_ns: Times, cumulative: Columns) -> float | None:
        """Return the increase per second in the window, or between the outermost samples."""
        valid = ~np.isnan(cumulative)
        t = t_ns[valid]
        values = cumulative[valid]
        if len(t) < 2:
            return None
        begin = max(self.begin, int(t[0]))
        end = min(self.end, int(t[-1]))
        if end <= begin:
            return None
        low, high = np.interp([begin, end], t, values)
        return max(0.0, float(high - low)) / ((end - begin) / 1e9)

    def _process_rate(self, cumulative: Columns) -> float | None:
        if len(cumulative) != len(self.columns.process_t_ns):
            return None  # a file of before this column was sampled
        return self._rate(self.columns.process_t_ns, cumulative)

    def _workers_queued(self) -> float | None:
        """Return None where there are no other processes, or the system does not count it."""
        rates = [self._process_rate(queued) for queued in self.columns.process_queued_s.T]
        # One that was read once only lived too short to tell.
        queued_cpus = [
            rate for at, rate in enumerate(rates) if at != self.main and rate is not None
        ]
        return sum(queued_cpus) if queued_cpus else None

    def _growth(self, values: Columns) -> float | None:
        """Return growth a second of the least of each quarter; 0 where one rises unlike the others.

        An evaluation of larger batches has a slope as well; a cache that fills hides no leak.
        """
        t = self.columns.process_t_ns[self.processes] / 1e9
        y = values[self.processes]
        t, y = t[~np.isnan(y)], y[~np.isnan(y)]
        if len(t) < 3 or np.ptp(t) <= 0:
            return None
        parts = min(4, len(t))
        floors = np.array([part.min() for part in np.array_split(y, parts)])
        rates = np.diff(floors) / np.diff([part.mean() for part in np.array_split(t, parts)])
        typical = float(np.median(rates))
        return typical if rates.min() > 0 and rates.min() >= _STEADY * typical else min(typical, 0)


def _across(values: Columns, combine: Callable[..., Columns]) -> Columns:
    """Return one value a sample out of one for each device; NaN where no device gave any."""
    measured = ~np.isnan(values).all(axis=1) if values.size else np.zeros(len(values), dtype=bool)
    result = np.full(len(values), np.nan)
    if measured.any():
        result[measured] = combine(values[measured], axis=1)
    return result


def _throttle(bits: Columns) -> list[Throttling]:
    """Return reasons, each with its share of the samples."""
    measured = bits[~np.isnan(bits)].astype(np.int64)
    if not len(measured):
        return []
    shares = {name: np.mean(measured & bit != 0) for bit, name in THROTTLE_REASONS.items()}
    return [
        Throttling(reason=reason, share=float(share))
        for reason, share in shares.items()
        if share > 0
    ]


def _of_valid(values: Columns, combine: Callable[[Columns], Any]) -> float | None:
    valid = values[~np.isnan(values)]
    return float(combine(valid)) if len(valid) else None


def _most(values: Columns) -> int | None:
    highest = _of_valid(values, np.max)
    return None if highest is None else int(highest)


def sensor_curves(columns: SensorColumns) -> dict[str, tuple[Columns, Columns]]:
    """Return wall times (Unix, s) and values of the whole launch's curves; without NaN.

    `utilization/program_cpus` counts CPUs, the others are 0 to 1; `memory/...` is GB (1e9 bytes).
    """
    if not len(columns.wall_offset_ns):
        return {}
    t_ns, used_s, cpus = columns.use_of_cpus()
    times, used = _curve_of_rate(t_ns, used_s)
    drawn = {
        "utilization/cpu": (times, np.minimum(used / max(cpus, 1.0), 1.0)),
        "utilization/program_cpus": _curve_of_rate(columns.process_t_ns, columns.tree_cpu_s),
        "memory/process_tree_GB": (columns.process_t_ns, columns.rss_bytes / 1e9),
        "disk/read_MB_per_s": _curve_of_rate(columns.process_t_ns, columns.read_bytes / 1e6),
        "disk/written_MB_per_s": _curve_of_rate(columns.process_t_ns, columns.write_bytes / 1e6),
        "network/MB_per_s": _curve_of_rate(columns.process_t_ns, columns.network_bytes / 1e6),
    }
    devices = range(columns.gpu_utilization.shape[1])
    ours = [device for device in devices if columns.gpu_ours[device] > 0] or list(devices)
    for device in ours:
        gpu = "gpu" if len(ours) == 1 else f"gpu_{device}"
        drawn[f"utilization/{gpu}"] = columns.t_ns, columns.gpu_utilization[:, device]
        drawn[f"memory/{gpu}_GB"] = columns.t_ns, columns.gpu_memory_bytes[:, device] / 1e9
    measured = {name: ~np.isnan(values) for name, (_, values) in drawn.items()}
    return {
        name: ((t[measured[name]] + columns.wall_offset_ns[0]) / 1e9, values[measured[name]])
        for name, (t, values) in drawn.items()
        if measured[name].any()
    }


def _curve_of_rate(t_ns: Times, cumulative: Columns) -> tuple[Times, Columns]:
    """Return moments half a second apart, and the increase per second up to each of them."""
    t_ns = t_ns[: len(cumulative)]  # a column may not have been recorded
    chosen = list(range(min(len(t_ns), 1)))
    for row, at in enumerate(t_ns.tolist()):
        if at - t_ns[chosen[-1]] >= _RATE_INTERVAL_NS:
            chosen.append(row)
    times = t_ns[chosen]
    rates = np.diff(cumulative[chosen]) / (np.diff(times) / 1e9)
    return times[1:], np.maximum(rates, 0.0)
