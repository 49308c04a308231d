"""The report's figures, and the columns of its launches, as scalars."""

from collections.abc import Sequence
from dataclasses import asdict

from torchdoctor.machine.sensor_columns import sensor_curves
from torchdoctor.reports.run_columns import Measured
from torchdoctor.reports.tensorboard.event_file import EventFile
from torchdoctor.words import Report

_MOST_POINTS = 5000  # of one curve; TensorBoard itself shows a thousand


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
    writer.scalar("utilization/cpu_mean", sensors.cpu_share)
    writer.scalar("utilization/gpu_mean", sensors.gpu_utilization)
    for tag, size_bytes in (
        ("memory/peak_GB", baseline.peak_memory_bytes),
        ("memory/process_tree_peak_GB", sensors.rss_peak_bytes),
        ("memory/gpu_peak_GB", sensors.gpu_memory_peak_bytes),
    ):
        writer.scalar(tag, None if size_bytes is None else size_bytes / 1e9)


def write_observed(writer: EventFile, measured: Measured) -> None:
    """Write the observing launch over time: steps and sensors."""
    launch = measured.observed
    if launch is None:
        return
    write_steps(writer, "step_time/observed_s", "observed", measured)
    curves = sensor_curves(launch.sensors) if launch.sensors is not None else {}
    for name, (wall_s, values) in curves.items():
        for row in _thinned(len(values)):
            at = float(wall_s[row])
            writer.scalar(name, float(values[row]), round((at - wall_s[0]) * 1000), at)


def write_steps(writer: EventFile, tag: str, kind: str, measured: Measured) -> None:
    """Write the steps of a kind of launches at their wall times."""
    ends_ns, step_s = measured.steps(kind)
    for number in _thinned(len(step_s)):
        at = _wall_s(int(ends_ns[number]), measured)
        writer.scalar(tag, float(step_s[number]), number, at)


def _wall_s(t_ns: int, measured: Measured) -> float | None:
    sensors = measured.observed.sensors if measured.observed else None
    if sensors is None or not len(sensors.wall_offset_ns):
        return None
    return (t_ns + int(sensors.wall_offset_ns[0])) / 1e9


def _thinned(points: int) -> Sequence[int]:
    return range(0, points, -(-points // _MOST_POINTS) or 1)
