"""What the run folder still holds of the raw columns, and the report's figures, as scalars."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.machine.sensor_columns import SensorColumns, sensor_curves
from torchdoctor.observe.events import Events, read_channel
from torchdoctor.observe.step_finding import boundary_rows, training_processes
from torchdoctor.observe.steps import count_samples
from torchdoctor.pairs.launch_timing import main_process, measured_windows
from torchdoctor.reports.tensorboard.event_file import EventFile
from torchdoctor.words import Boundary, Report

_MOST_POINTS = 5000  # of one curve; TensorBoard itself shows a thousand
_MOST_RATES = 100  # points of samples per second in one launch

Edges = NDArray[np.int64]  # times in ns of the boundaries of a launch's steps, shape (steps + 1,)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The observing launch: the untouched program from its first step on.

    rows: of `events` (the main trainer's) that begin a step.
    rates: (time in ns, samples per second of all trainers together), of several steps each.
    """

    events: Events
    rows: NDArray[np.int64]
    rates: list[tuple[int, float]]
    sensors: SensorColumns | None

    @property
    def edges(self) -> Edges:
        """Return the times of the steps' boundaries."""
        return self.events.t_ns[self.rows]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Launches of a run folder by kind: "observed", "baseline" and "recommended"."""

    observed: Observed | None = None
    kinds: dict[str, list[Edges]] = field(default_factory=dict)

    def steps(self, kind: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return when the steps of a kind ended (ns), and the seconds that each took."""
        launches = self.kinds[kind]
        ends_ns = np.concatenate([edges[1:] for edges in launches])
        return ends_ns, np.concatenate([np.diff(edges) for edges in launches]) / 1e9


def read_measured(report: Report) -> Measured:
    """Return the launches of a report's run; what is not there, or damaged, is left out."""
    if not report.run_folder or report.steps is None:
        return Measured()
    chosen = {fix.fix: fix.settings for fix in report.recommendation.fixes}
    observed, kinds = None, dict[str, list[Edges]](observed=[], baseline=[], recommended=[])
    for folder in sorted((Path(report.run_folder) / "launches").glob("*")):
        plan = _plan(folder)
        if plan.get("purpose") == "observe" and observed is None:
            observed = _observed(folder, report.steps.boundary)
            kinds["observed"] = [observed.edges] if observed is not None else []
        if plan.get("purpose") != "time":
            continue
        events, facts, _ = read_channel(folder / "channel")
        windows = measured_windows(events)
        if (main := main_process(windows, events, facts)) is None:
            continue
        edges = events[main].t_ns[windows[main]]
        if folder.name.partition("-")[2] == "baseline":
            kinds["baseline"].append(edges)
        if chosen and {fix["id"]: fix["settings"] for fix in plan.get("fixes", [])} == chosen:
            kinds["recommended"].append(edges)
    return Measured(
        observed=observed, kinds={kind: timed for kind, timed in kinds.items() if timed}
    )


def _plan(folder: Path) -> dict[str, Any]:
    try:
        plan = msgspec.json.decode((folder / "plan.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return plan if isinstance(plan, dict) else {}


def _observed(folder: Path, boundary: Boundary) -> Observed | None:
    events, facts, _ = read_channel(folder / "channel")
    trainers = [events[pid] for pid in training_processes(events, facts)]
    rows = [boundary_rows(trainer, boundary) for trainer in trainers]
    if not rows or len(rows[0]) < 2:
        return None
    try:
        sensors = SensorColumns.load(folder / "sensors.npz")
    except (OSError, ValueError, KeyError):
        sensors = None
    rates = _rates(trainers, rows, boundary)
    return Observed(events=trainers[0], rows=rows[0], rates=rates, sensors=sensors)


def _rates(
    trainers: Sequence[Events], rows: Sequence[Edges], boundary: Boundary
) -> list[tuple[int, float]]:
    """Return samples per second; empty where batches have no size."""
    steps = min(len(edges) for edges in rows) - 1
    chunk = max(1, -(-steps // _MOST_RATES))
    loader = boundary.ident if boundary.kind == "loader" else None
    rates = []
    for first in range(0, steps - chunk + 1, chunk):
        total = 0.0
        for events, edges in zip(trainers, rows, strict=True):
            begin, end = int(edges[first]), int(edges[first + chunk])
            samples = count_samples(events, begin, end, loader)
            seconds = float(events.t_ns[end] - events.t_ns[begin]) / 1e9
            if samples is None or seconds <= 0:
                return []
            total += samples / seconds
        rates.append((int(trainers[0].t_ns[rows[0][first + chunk]]), total))
    return rates


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
    _write_steps(writer, "step_time/observed_s", "observed", measured)
    steps = np.searchsorted(launch.edges, [at for at, _ in launch.rates])
    for (at_ns, rate), step in zip(launch.rates, steps.tolist(), strict=True):
        writer.scalar("samples_per_s/observed", rate, step, _wall_s(at_ns, measured))
    curves = sensor_curves(launch.sensors) if launch.sensors is not None else {}
    for name, (wall_s, values) in curves.items():
        for row in _thinned(len(values)):
            at = float(wall_s[row])
            writer.scalar(name, float(values[row]), round((at - wall_s[0]) * 1000), at)


def write_launches(folder: Path, measured: Measured) -> None:
    """Write steps of the timed launches, a TensorBoard run for each kind: one chart has both."""
    for kind in [kind for kind in measured.kinds if kind != "observed"]:
        with EventFile(folder / kind) as writer:
            _write_steps(writer, "step_time/measured_s", kind, measured)


def _write_steps(writer: EventFile, tag: str, kind: str, measured: Measured) -> None:
    ends_ns, step_s = measured.steps(kind)
    for number in _thinned(len(step_s)):
        at = _wall_s(int(ends_ns[number]), measured)
        writer.scalar(tag, float(step_s[number]), number, at)


def _gb(value: float | None) -> float | None:
    return None if value is None else value / 1e9


def _wall_s(t_ns: int, measured: Measured) -> float | None:
    sensors = measured.observed.sensors if measured.observed else None
    if sensors is None or not len(sensors.wall_offset_ns):
        return None
    return (t_ns + int(sensors.wall_offset_ns[0])) / 1e9


def _thinned(points: int) -> Sequence[int]:
    return range(0, points, -(-points // _MOST_POINTS) or 1)
