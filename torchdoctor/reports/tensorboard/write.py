"""Write a report below a TensorBoard log folder: figures, columns, trials, traces; no torch."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from torchdoctor.machine.sensor_columns import sensor_curves
from torchdoctor.reports import markdown
from torchdoctor.reports.details import A_A
from torchdoctor.reports.formats import document
from torchdoctor.reports.run_columns import Measured, read_measured, trace_files
from torchdoctor.reports.trial_rows import training
from torchdoctor.reports.vocabulary import compared, step_of
from torchdoctor.reports.wording import samples_per_s
from torchdoctor.schema import Interval, Report
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import MISSING, clean, fixes_alone, settings_of_all

_MOST_POINTS = 5000  # of one curve; TensorBoard itself shows a thousand
_RUN = "run"
_NAMED = re.compile(r".+\.pt\.trace\.json(\.gz)?")  # as torch's tensorboard_trace_handler names it


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
    unit = step_of(report)
    baseline = report.baseline
    time_s = report.baseline.step_time_s
    sensors = report.sensors
    if time_s is not None:
        writer.scalar(f"{unit}_time/median_s", time_s.median)
        writer.scalar(f"{unit}_time/mean_s", time_s.mean)
    for number, seconds in enumerate(report.trace.step_times_s if report.trace else []):
        writer.scalar(f"{unit}_time/profiled_s", seconds, number)
    for number, seconds in enumerate(baseline.launches_s):
        writer.scalar("launches/baseline_s_per_sample", seconds, number)
    calls = report.steps.calls if report.steps is not None else None
    writer.scalar("samples_per_s/deciding", samples_per_s(report))
    if calls is not None:
        writer.scalar("latency_s/median", calls.latency_median_s)
        writer.scalar("latency_s/p95", calls.latency_p95_s)
        writer.scalar("tokens_per_s", calls.tokens_per_s)
    for name, share in asdict(baseline.shares).items():
        writer.scalar(f"share_of_{unit}/{name}", share)
    writer.scalar("utilization/cpu_mean", sensors.cpu_share)
    writer.scalar("utilization/gpu_mean", sensors.gpu_utilization)
    for tag, size_bytes in (
        ("memory/peak_GB", baseline.peak_memory_bytes),
        ("memory/process_tree_peak_GB", sensors.rss_peak_bytes),
        ("memory/gpu_peak_GB", sensors.gpu_memory_peak_bytes),
    ):
        writer.scalar(tag, None if size_bytes is None else size_bytes / 1e9)


def write_observed(writer: EventFile, measured: Measured, unit: str) -> None:
    """Write the observing launch over time: steps and sensors."""
    launch = measured.observed
    if launch is None:
        return
    write_steps(writer, f"{unit}_time/observed_s", "observed", measured)
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


def write_tensorboard(report: Report, folder: Path) -> None:
    """Write a report below a log folder; what other runs wrote there stays.

    `<folder>/<when>/run` holds scalars and text, `<when>/baseline` and `<when>/recommended`
    the steps of the timed launches, `<when>/trials/<nn>-<fix>` one HParams session for each trial,
    and `<folder>/plugins/profile/<when>` the traces.
    Raise UsageError if the folder cannot be written.
    """
    created = "".join(c for c in report.created.partition("+")[0] if c.isalnum())
    plain = created or time.strftime("%Y%m%dT%H%M%S")
    names = (f"{plain}-{number}" if number > 1 else plain for number in itertools.count(1))
    when = next(name for name in names if not (folder / name).exists())
    measured = read_measured(report)
    unit = step_of(report)
    try:
        with EventFile(folder / when / _RUN) as writer:
            write_figures(writer, report)
            write_observed(writer, measured, unit)
            for number, (title, text) in enumerate(markdown.titled(document(report)), 1):
                writer.text(f"report/{number:02d} {title}", text)
        for kind in measured.kinds.keys() - {"observed"}:  # each a run, so that one chart has both
            with EventFile(folder / when / kind) as writer:
                write_steps(writer, f"{unit}_time/measured_s", kind, measured)
        _write_trials(report, folder / when / "trials")
        _write_traces(report, folder / "plugins" / "profile" / when)
    except OSError as error:
        raise UsageError(
            f"Cannot write the TensorBoard folder {folder} ({error.strerror or error}): name "
            "another folder with --tensorboard."
        ) from error


def _write_traces(report: Report, folder: Path) -> None:
    """Copy each trace to `<folder>/<worker>.<time>.pt.trace.json[.gz]`; its content stays.

    The worker is `<host>_<pid>` of our own launches. A trace that was given keeps such a name, or
    is `<its name>_<rank>`: the profiler plugin tells a job's ranks by their workers.
    """
    ranks = {rank.path: rank.rank for rank in report.ranks}
    for number, path in enumerate(trace_files(report)):
        folder.mkdir(parents=True, exist_ok=True)
        name = path.name
        stem = path.name.removesuffix(".gz").removesuffix(".json")
        if report.run_folder or not _NAMED.fullmatch(name):
            worker = f"{stem}_{ranks.get(str(path), number)}"
            if report.run_folder:
                worker = f"{socket.gethostname()}_{stem.removeprefix('trace-')}"
            packed = ".gz" if path.name.endswith(".gz") else ""
            worker = re.sub(r"[^A-Za-z0-9_-]+", "-", worker)
            name = f"{worker}.{path.stat().st_mtime_ns}.pt.trace.json{packed}"
        if (folder / name).exists():  # two folders of ranks may repeat a name
            name = f"{number}_{name}"
        shutil.copyfile(path, folder / name)


def _write_trials(report: Report, folder: Path) -> None:
    """Write a session `<folder>/<nn>-<fix>` for each trial, in order: its columns and figures.

    Behind the measured and the failed trials stand the recommended set and the A/A.
    """
    columns = ("fix", "settings", "verdict", compared(report))
    rows: list[tuple[tuple[str, str, str, str], Interval | None, int | None]] = []
    for trial in report.trials:
        if trial.speedup is not None or trial.verdict == "failed":
            fixes = fixes_alone(trial.fixes)
            values = settings_of_all(trial.fixes)
            numerics = training(trial.numerics)
            cells = fixes, values, trial.verdict, numerics
            rows.append((cells, trial.speedup, trial.peak_memory_bytes))
    together = report.recommendation
    if together.speedup is not None and len(together.fixes) > 1:
        fixes = ", ".join(clean(fix.fix) for fix in together.fixes)
        cells = "all recommended together", fixes, "recommended", training(together.numerics)
        rows.append((cells, together.speedup, together.peak_memory_bytes))
    if report.noise_floor is not None:
        rows.append(((A_A, "", "noise floor", ""), report.noise_floor, None))
    # No config of an experiment: TensorBoard would take one report's for all in the log folder.
    for number, (cells, speedup, memory) in enumerate(rows, 1):
        name = f"{number:02d}-{''.join(c if c.isalnum() else '-' for c in cells[0])}"
        with EventFile(folder / name) as writer:
            # TensorBoard makes one row of all that have the same id, also of other reports.
            title = f"{number:02d} {cells[0]} {folder.parent.name}"
            shown = {column: cell or MISSING for column, cell in zip(columns, cells, strict=True)}
            writer.summary(hparams.hparams_pb(shown, trial_id=title))
            if speedup is not None:
                writer.scalar("speedup", speedup.estimate)
                writer.scalar("speedup_low", speedup.low)
                writer.scalar("speedup_high", speedup.high)
            writer.scalar("peak_memory_GB", None if memory is None else memory / 1e9)
