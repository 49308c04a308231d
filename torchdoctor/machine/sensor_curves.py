"""Sensor columns -> curves over wall time, to be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.machine.sensor_columns import Columns, SensorColumns
from torchdoctor.machine.usable_cpus import affinity, cpu_quota

_RATE_INTERVAL_NS = 500_000_000  # the system counts CPU time in hundredths of a second


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One quantity over time: n wall times (Unix, s) and n values; nothing is NaN."""

    name: str
    wall_s: Columns
    values: Columns


def sensor_curves(columns: SensorColumns) -> list[Curve]:
    """Return the whole launch's curves that were measured; [] where its wall time is unknown.

    `utilization/program_cpus` counts CPUs, the other `utilization/...` are 0 to 1, of the usable
    CPUs or of one GPU; `memory/...` is GB (1e9 bytes). GPUs are those that the program computes
    on, else all.
    """
    if not len(columns.wall_offset_ns):
        return []
    curves = [
        _curve(columns, "utilization/cpu", *_cpu_share(columns)),
        _curve(
            columns,
            "utilization/program_cpus",
            *_rate(columns.process_t_ns, columns.tree_cpu_s),
        ),
        _curve(columns, "memory/process_tree_GB", columns.process_t_ns, columns.rss_bytes / 1e9),
    ]
    devices = columns.gpu_utilization.shape[1]
    ours = [i for i in range(devices) if columns.gpu_ours[i] > 0] or list(range(devices))
    for device in ours:
        suffix = "" if len(ours) == 1 else f"_{device}"
        used, memory = columns.gpu_utilization[:, device], columns.gpu_memory_bytes[:, device]
        curves.append(_curve(columns, f"utilization/gpu{suffix}", columns.t_ns, used))
        curves.append(_curve(columns, f"memory/gpu{suffix}_GB", columns.t_ns, memory / 1e9))
    return [curve for curve in curves if len(curve.values)]


def _curve(columns: SensorColumns, name: str, t_ns: np.ndarray, values: Columns) -> Curve:
    measured = ~np.isnan(values)
    wall_s = (t_ns[measured] + columns.wall_offset_ns[0]) / 1e9
    return Curve(name=name, wall_s=wall_s, values=values[measured])


def _cpu_share(columns: SensorColumns) -> tuple[np.ndarray, Columns]:
    """Of the CPUs that may be used, as `SensorStatistics.cpu_share` counts them."""
    usable, quota = affinity(), cpu_quota()
    if quota is not None and quota < len(usable):
        t_ns, tree = _rate(columns.process_t_ns, columns.tree_cpu_s)
        _, own = _rate(columns.process_t_ns, columns.own_cpu_s)
        return t_ns, np.minimum((tree + np.nan_to_num(own)) / quota, 1.0)
    shown = [core for core in usable if core < columns.core_busy_s.shape[1]]
    if not shown:
        return columns.t_ns[:0], columns.iowait_s[:0]
    t_ns, busy = _rate(columns.t_ns, columns.core_busy_s[:, shown].sum(axis=1))
    return t_ns, np.minimum(busy / len(shown), 1.0)


def _rate(t_ns: np.ndarray, cumulative: Columns) -> tuple[np.ndarray, Columns]:
    """Increase per second up to each of the chosen moments, which lie half a second apart."""
    if len(t_ns) < 2:
        return t_ns[:0], cumulative[:0]
    chosen, last = [0], int(t_ns[0])
    for row, at in enumerate(t_ns.tolist()):
        if at - last >= _RATE_INTERVAL_NS:
            chosen.append(row)
            last = at
    times = t_ns[chosen]
    rates = np.diff(cumulative[chosen]) / (np.diff(times) / 1e9)
    return times[1:], np.maximum(rates, 0.0)
