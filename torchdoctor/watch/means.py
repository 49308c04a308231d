"""Means of a process and its machine, over stretches of about five seconds of training.

A table of means is what changes are looked for in, and what their causes are told by.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.watch.changes import MEAN_S
from torchdoctor.watch.inside import layout
from torchdoctor.watch.recording import PHASES, Rows, Steps

Column = NDArray[np.float64]
# Of sums since the process or the machine began: what they grow by in a second.
_PROCESS_RATES = ("cpu_s", "queued_s", "major_faults", "read_bytes")
_MACHINE_RATES = (
    "busy_s",
    "iowait_s",
    "tree_cpu_s",
    "throttled_s",
    "cpu_pressure_s",
    "memory_pressure_s",
    "io_pressure_s",
    "swap_in_bytes",
    "read_bytes",
    "own_cpu_s",
)
_PROCESS_LEVELS = ("rss_bytes", "swapped_bytes", "device_reserved_bytes")
_MACHINE_LEVELS = (
    "cpus",
    "cpu_mhz",
    "memory_free_bytes",
    "memory_limit_bytes",
    "tree_bytes",
    "gpu_utilization",
    "gpu_clock_mhz",
    "gpu_throttle",
    "gpu_others",
    "gpu_memory_bytes",
    "gpu_memory_limit_bytes",
)
_STALL = 5.0  # times the median, above which a step counts no more
# "step_s" is a training step, without evaluation and checkpoints, and "usual_s" the same of which
# no step is far above the others; "exchange" waits for other ranks.
COLUMNS = (
    "first_step",
    "last_step",
    "begin_ns",
    "end_ns",
    "steps",
    "step_s",
    "usual_s",
    *PHASES,
    "exchange",
    "samples",
    "elements",
    "recompiled",
    "new_input",
    "others_cpus",
    *(f"process_{name}" for name in (*_PROCESS_RATES, *_PROCESS_LEVELS)),
    *(_MACHINE_RATES + _MACHINE_LEVELS),
)
MEANS = np.dtype([(name, "<f8") for name in COLUMNS])


def training_s(steps: Steps) -> Column:
    """Return the seconds of each row without evaluation and checkpoints."""
    return np.asarray(steps.total_s - steps.rows["evaluation"] - steps.rows["checkpoint"])


def exchange_s(steps: Steps) -> Column:
    """Return the seconds that each row's last step waits for the other ranks; NaN: none."""
    return (steps.exchanged_ns - steps.entry_ns) / 1e9


def end_ns(steps: Steps) -> Column:
    """Return when each row's last step ended, on the host's monotonic clock."""
    return np.asarray(steps.start_ns + steps.total_s * 1e9)


def comparable(steps: Steps) -> Steps:
    """Return the steps that can be compared with each other."""
    return steps if steps.plain.all() else Steps(rows=steps.rows[steps.plain])


def stretches(steps: Steps, least_s: float = MEAN_S) -> NDArray[np.int64]:
    """Return the row that each stretch of so much training begins with, and that of the open one.

    A stretch ends with the step that fills it, so it holds a step at least.
    """
    filled = np.floor(np.cumsum(training_s(steps)) / least_s)
    return np.concatenate([[0], np.flatnonzero(np.diff(filled, prepend=0.0) > 0) + 1])


def means(steps: Steps, process: Rows, machine: Rows, begins: NDArray[np.int64]) -> Rows:
    """Return a row of `MEANS` for each stretch but the last; NaN is what was not measured."""
    result = np.full(len(begins) - 1, np.nan, MEANS)
    if not len(result):
        return result
    weights, first, last = steps.steps, begins[:-1], begins[1:] - 1

    def sums(values: NDArray[Any]) -> Column:
        return np.asarray(np.diff(np.concatenate([[0.0], np.cumsum(values)])[begins]))

    def mean(values: Column) -> Column:
        is_measured = np.isfinite(values)
        counts = sums(np.where(is_measured, weights, 0.0))
        of_known = sums(np.where(is_measured, values * weights, 0.0))
        return np.where(counts > 0, of_known / np.maximum(counts, 1), np.nan)

    result["first_step"] = steps.step[first] - weights[first] + 1
    result["last_step"] = steps.step[last]
    result["begin_ns"], result["end_ns"] = steps.start_ns[first], end_ns(steps)[last]
    result["steps"] = sums(weights)
    step_s = training_s(steps) / weights
    result["step_s"] = mean(step_s)
    result["usual_s"] = mean(np.minimum(step_s, _STALL * np.median(step_s)))
    for number, name in enumerate(PHASES):
        result[name] = mean(steps.phases_s[:, number])
    result["exchange"] = mean(exchange_s(steps))
    result["samples"], result["elements"] = mean(steps.samples), mean(steps.elements)
    for name, flag in (("recompiled", layout.RECOMPILED), ("new_input", layout.NEW_INPUT)):
        result[name] = mean(steps.has(flag).astype(float))
    for rows, prefix, rates, levels in (
        (process, "process_", _PROCESS_RATES, _PROCESS_LEVELS),
        (machine, "", _MACHINE_RATES, _MACHINE_LEVELS),
    ):
        for name in rates:
            result[prefix + name] = _rates(rows, name, result["begin_ns"], result["end_ns"])
        for name in levels:
            result[prefix + name] = _at(rows, name, (result["begin_ns"] + result["end_ns"]) / 2)
    own_cpu_s = np.nan_to_num(result["own_cpu_s"])
    result["others_cpus"] = np.maximum(result["busy_s"] - result["tree_cpu_s"] - own_cpu_s, 0.0)
    return result


def _rates(rows: Rows, name: str, begin_ns: Column, end_ns: Column) -> Column:
    """Return what a sum grows by in a second of each stretch; at least two samples wide."""
    t_ns, values = _known(rows, name)
    if len(t_ns) < 2:
        return np.full(len(begin_ns), np.nan)
    # Between samples the growth is unknown: widen each stretch to the samples around it.
    first = np.clip(np.searchsorted(t_ns, begin_ns, "right") - 1, 0, len(t_ns) - 2)
    last = np.clip(np.searchsorted(t_ns, end_ns), first + 1, len(t_ns) - 1)
    return np.asarray(
        (values[last] - values[first]) / np.maximum(t_ns[last] - t_ns[first], 1) * 1e9
    )


def _at(rows: Rows, name: str, at_ns: Column) -> Column:
    t_ns, values = _known(rows, name)
    return np.interp(at_ns, t_ns, values) if len(t_ns) else np.full(len(at_ns), np.nan)


def _known(rows: Rows, name: str) -> tuple[Column, Column]:
    if not len(rows):  # nothing was measured beside the run
        return np.zeros(0), np.zeros(0)
    is_measured = np.isfinite(rows[name])
    return rows["t_ns"][is_measured].astype(np.float64), rows[name][is_measured]


def level_of(rows: Rows) -> dict[str, float]:
    """Return the median of each column; NaN where it was never measured."""
    measured = {name: rows[name][np.isfinite(rows[name])] for name in COLUMNS}
    return {
        name: float(np.median(values)) if len(values) else float("nan")
        for name, values in measured.items()
    }
