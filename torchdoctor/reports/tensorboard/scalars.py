"""The report's figures, and the columns of its launches, as scalars of an event file.

Only the `tensorboard` package writes; torch is not imported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from torchdoctor.machine.sensor_columns import sensor_curves
from torchdoctor.reports.run_columns import Measured
from torchdoctor.words import Report

_MOST_POINTS = 5000  # of one curve; TensorBoard itself shows a thousand


class EventFile:
    """Points and texts of one TensorBoard run, the folder it lies in; whole at the end."""

    def __init__(self, folder: Path) -> None:
        self._file = EventFileWriter(str(folder))
        self._now = time.time()

    def flush(self) -> None:
        """Let readers have what was written; later points are of now."""
        self._file.flush()
        self._now = time.time()

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def scalar(
        self, tag: str, value: float | None, step: int = 0, wall_s: float | None = None
    ) -> None:
        """Write a point at a wall time (default: now); None and NaN are no point."""
        if value is not None and math.isfinite(value):
            self._add(tag, np.float32(value), scalar_metadata, step, wall_s)

    def text(self, tag: str, text: str) -> None:
        """Write Markdown, shown as such."""
        self._add(tag, np.array(text.encode(), dtype=object), text_metadata)

    def summary(self, summary: Any, step: int = 0, wall_s: float | None = None) -> None:
        """Write a summary that a plugin made itself."""
        wall = self._now if wall_s is None else wall_s
        self._file.add_event(Event(wall_time=wall, step=step, summary=summary))

    def _add(
        self, tag: str, value: Any, plugin: Any, step: int = 0, wall_s: float | None = None
    ) -> None:
        about = plugin.create_summary_metadata(display_name="", description="")
        entry = Summary.Value(tag=tag, tensor=make_tensor_proto(value), metadata=about)
        self.summary(Summary(value=[entry]), step, wall_s)


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
