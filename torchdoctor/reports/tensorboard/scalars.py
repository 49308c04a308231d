"""What the run folder still holds of the raw columns, and the report's figures, as scalars."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from torchdoctor.machine.sensor_columns import sensor_curves
from torchdoctor.pairs.launch_steps import (
    BASELINE,
    LaunchSteps,
    Observed,
    observed,
    timed_launches,
)
from torchdoctor.reports.tensorboard.event_file import EventFile
from torchdoctor.words import Report

_MOST_POINTS = 5000  # of one curve; TensorBoard itself shows a thousand


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Launches with their steps; `kinds`: "baseline" and "recommended", those that were timed."""

    observed: Observed | None = None
    kinds: dict[str, list[LaunchSteps]] = field(default_factory=dict)


def read_measured(report: Report) -> Measured:
    """Return the launches of a report's run; what is not there, or damaged, is left out."""
    if not report.run_folder or report.steps is None:
        return Measured()
    folder = Path(report.run_folder)
    launches = timed_launches(folder)
    chosen = {fix.fix: fix.settings for fix in report.recommendation.fixes}
    kinds = {
        "baseline": [launch for launch in launches if launch.name == BASELINE],
        "recommended": [x for x in launches if chosen and dict(x.fixes) == chosen],
    }
    return Measured(
        observed=observed(folder, report.steps.boundary),
        kinds={kind: timed for kind, timed in kinds.items() if timed},
    )


def trace_files(report: Report) -> list[Path]:
    """Return the traces that the report is about, one for each rank, if still there."""
    if report.run_folder:
        return sorted(Path(report.run_folder).glob("launches/*/channel/trace-*.json.gz"))
    named = [rank.path for rank in report.ranks] or ([report.trace.path] if report.trace else [])
    return [path for path in map(Path, named) if path.is_file()]


def write_figures(writer: EventFile, report: Report) -> None:
    """Write each figure of the report; what was not measured is no point."""
    baseline, time_s, sensors = report.baseline, report.baseline.step_time_s, report.sensors
    if time_s is not None:
        writer.scalar("step_time/median_s", time_s.median)
        writer.scalar("step_time/mean_s", time_s.mean)
    for number, seconds in enumerate(report.trace.step_times_s if report.trace else []):
        writer.scalar("step_time/profiled_s", seconds, number)
    for number, seconds in enumerate(baseline.launches_s):
        writer.scalar("launches/baseline_s_per_sample", seconds, number)
    writer.scalar("samples_per_s/deciding", baseline.samples_per_s)
    for name, share in asdict(baseline.shares).items():
        writer.scalar(f"share_of_step/{name}", share)
    for tag, value in (
        ("utilization/cpu_mean", sensors.cpu_share),
        ("utilization/gpu_mean", sensors.gpu_utilization),
        ("memory/peak_GB", _gb(baseline.peak_memory_bytes)),
        ("memory/process_tree_peak_GB", _gb(sensors.rss_peak_bytes)),
        ("memory/gpu_peak_GB", _gb(sensors.gpu_memory_peak_bytes)),
    ):
        writer.scalar(tag, value)


def write_observed(writer: EventFile, measured: Measured) -> None:
    """Write the observing launch over time: steps, samples per second, sensors."""
    launch = measured.observed
    if launch is None:
        return
    edges = launch.events.t_ns[launch.edges]
    _write_steps(writer, "step_time/observed_s", edges[1:], np.diff(edges) / 1e9, measured)
    steps = np.searchsorted(edges, [at for at, _ in launch.rates])
    for (at_ns, rate), step in zip(launch.rates, steps.tolist(), strict=True):
        writer.scalar("samples_per_s/observed", rate, step, _wall_s(at_ns, measured))
    curves = sensor_curves(launch.sensors) if launch.sensors is not None else {}
    for name, (wall_s, values) in curves.items():
        for row in _thinned(len(values)):
            at = float(wall_s[row])
            writer.scalar(name, float(values[row]), round((at - wall_s[0]) * 1000), at)


def write_launches(folder: Path, measured: Measured) -> None:
    """Write steps of the timed launches, a TensorBoard run for each kind: one chart has both."""
    for kind, launches in measured.kinds.items():
        with EventFile(folder / kind) as writer:
            ends = np.concatenate([launch.edges_ns[1:] for launch in launches])
            step_s = np.concatenate([launch.step_s for launch in launches])
            _write_steps(writer, "step_time/measured_s", ends, step_s, measured)


def _write_steps(
    writer: EventFile, tag: str, ends_ns: np.ndarray, step_s: np.ndarray, measured: Measured
) -> None:
    for number in _thinned(len(step_s)):
        at = _wall_s(int(ends_ns[number]), measured)
        writer.scalar(tag, float(step_s[number]), number, at)


def _gb(value: float | None) -> float | None:
    return None if value is None else value / 1e9


def _wall_s(t_ns: int, measured: Measured) -> float | None:
    offset_ns = measured.observed.wall_offset_ns if measured.observed else None
    return None if offset_ns is None else (t_ns + offset_ns) / 1e9


def _thinned(points: int) -> Sequence[int]:
    return range(0, points, -(-points // _MOST_POINTS) or 1)
