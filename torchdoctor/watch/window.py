"""A watched run, or a window of it, as the recording that checks and fixes are asked about."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchdoctor.schema import (
    Boundary,
    Environment,
    LoaderFacts,
    ModelFacts,
    ProcessFacts,
    Recording,
    SensorStatistics,
    Shares,
    StepStatistics,
    Workload,
)
from torchdoctor.watch.recording import PHASES, Process

# Fields of StepStatistics by the log's name, where that differs.
FIELDS = {"wait": "data_wait_s", "copy": "h2d_copy_s"}
# What is a part of other phases there.
_WITHIN = {"evaluation": "forward", "checkpoint": "other", "gc": "other"}
_PAUSES = ("evaluation", "checkpoint")
_LEAST_QUEUED = 0.1  # seconds of each second


@dataclass(frozen=True)
class Fetch:
    """What is known of the fetches of a loader without workers; None: not known."""

    cpu_share: float | None = None  # CPU time
    queue_share: float | None = None  # of that the queue for a CPU


def field_of(phase: str) -> str:
    """Return the field of StepStatistics that a phase of the log is."""
    return FIELDS.get(phase, f"{phase}_s")


def logged_phases(fields: Sequence[str]) -> list[str]:
    """Return the phases of the log that fields of StepStatistics are."""
    return [phase for phase in PHASES if field_of(phase) in fields]


def recording(
    process: Process,
    phases_s: Mapping[str, float],
    steps: int,
    workload: Workload,
    sensors: SensorStatistics | None = None,
    usable_cpus: float | None = None,
    fetch: Fetch | None = None,
) -> Recording:
    """Return a watched run as a recording; `phases_s`: means of a step. The rest is unknown."""
    fetch = fetch if fetch is not None and not process.num_workers else Fetch()
    means = dict(phases_s)
    mean_s = sum(means.values())
    for name, around in _WITHIN.items():
        means[around] = means.get(around, 0.0) + means.get(name, 0.0)
    means.pop("checkpoint", None)
    timed: dict[str, Any] = {field_of(name): spent_s for name, spent_s in means.items()}
    loader = LoaderFacts(
        ident=0,
        location=process.location if process.step_kind == "loader" else None,
        num_workers=process.num_workers or 0,
        batch_size=process.batch_size,
        batches=steps,
        sample_cpu_share=fetch.cpu_share,
        sample_queue_share=fetch.queue_share,
    )
    waits = means.get("wait", 0.0) / mean_s if mean_s > 0 else None
    return Recording(
        workload=workload,
        environment=Environment(torch=process.torch or None, usable_cpus=usable_cpus),
        steps=StepStatistics(
            boundary=Boundary(
                kind=process.step_kind or "loader",
                learned_by="forward" if process.infers else "backward",
            ),
            steps=steps,
            warmup_steps=0,
            median_s=mean_s,
            mean_s=mean_s,
            p10_s=mean_s,
            p90_s=mean_s,
            **timed,
        ),
        sensors=sensors or SensorStatistics(),
        shares=Shares(data_loader=waits),
        processes=[
            ProcessFacts(
                pid=process.pid,
                loaders=[loader] if process.num_workers is not None else [],
                models=[ModelFacts(ident=0, device=process.device)],
            )
        ],
    )


def of_level(
    process: Process, level: Mapping[str, float], fetch_cpu_share: float | None = None
) -> Recording:
    """Return a window as a recording; `level`: medians of the columns of `means.MEANS`.

    `fetch_cpu_share` is that of a loader without workers, which no log tells.
    """
    phases_s = {phase: 0.0 if phase in _PAUSES else _or_zero(level[phase]) for phase in PHASES}
    figures = {name: value for name, value in level.items() if math.isfinite(value)}
    cpus = figures.get("cpus")
    sensors = SensorStatistics(
        workers_cpus=_difference(figures, "tree_cpu_s", "process_cpu_s"),
        workers_queued_cpus=_no_queue(figures, "cpu_pressure_s"),
        other_load_cpus=figures.get("others_cpus"),
        iowait_share=figures["iowait_s"] / cpus if cpus and "iowait_s" in figures else None,
        quota_stopped_s=figures.get("throttled_s"),
        read_bytes_per_s=figures.get("read_bytes"),
        gpu_utilization=figures.get("gpu_utilization"),
        gpu_sharing_processes=round(figures["gpu_others"]) if "gpu_others" in figures else None,
    )
    workload = Workload(command=process.argv, cwd="")
    steps = max(round(_or_zero(level["steps"])), 1)
    fetch = Fetch(fetch_cpu_share, _no_queue(figures, "process_queued_s"))
    return recording(process, phases_s, steps, workload, sensors, cpus, fetch)


def _no_queue(figures: Mapping[str, float], name: str) -> float | None:
    """Return 0 where hardly anything waited for a CPU; None: how long a fetch did is not known."""
    return 0.0 if figures.get(name, math.inf) < _LEAST_QUEUED else None


def _difference(figures: Mapping[str, float], whole: str, part: str) -> float | None:
    if whole not in figures or part not in figures:
        return None
    return max(figures[whole] - figures[part], 0.0)


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
