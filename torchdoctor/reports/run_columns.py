"""What a run folder still holds of the raw columns of its launches."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.bench.launch_timing import main_process, measured_windows
from torchdoctor.machine.sensor_columns import SensorColumns
from torchdoctor.observe.events import Events, read_channel, read_observed
from torchdoctor.observe.step_finding import boundary_rows, training_processes
from torchdoctor.observe.step_lanes import StepLanes, lanes_of_trace
from torchdoctor.schema import Boundary, Report, set_of
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import bytes_of
from torchdoctor.trace.reader import read_trace

Edges = NDArray[np.int64]  # times in ns of the boundaries of a launch's steps, shape (steps + 1,)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The observing launch from its first step on; `rows` of the main trainer begin a step."""

    events: Events
    rows: NDArray[np.int64]
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
    chosen = set_of(report.recommendation.fixes)
    observed = None
    kinds = dict[str, list[Edges]](observed=[], baseline=[], recommended=[])
    for folder in sorted((Path(report.run_folder) / "launches").glob("*")):
        try:
            plan = msgspec.json.decode(bytes_of(folder / "plan.json"), type=dict[str, Any])
        except (OSError, msgspec.DecodeError):
            continue
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


def _observed(folder: Path, boundary: Boundary) -> Observed | None:
    events, facts, _ = read_observed(folder / "channel")
    trainers = training_processes(events, facts)
    if not trainers:
        return None
    rows = boundary_rows(events[trainers[0]], boundary)
    if len(rows) < 2:
        return None
    try:
        sensors = SensorColumns.load(folder / "sensors.npz")
    except (OSError, ValueError, KeyError):
        sensors = None
    return Observed(events=events[trainers[0]], rows=rows, sensors=sensors)


def trace_files(report: Report) -> list[Path]:
    """Return the traces that the report is about, one for each rank, if still there."""
    if report.run_folder:
        return sorted(Path(report.run_folder).glob("launches/*/channel/trace-*.json.gz"))
    named = [rank.path for rank in report.ranks] or ([report.trace.path] if report.trace else [])
    return [path for path in map(Path, named) if path.is_file()]


def profiled_lanes(report: Report) -> StepLanes | None:
    """Return steps of the trace that the report's shares are of; None if it cannot be read."""
    path = Path(report.trace.path) if report.trace is not None else None
    try:
        return lanes_of_trace(read_trace(path)) if path in trace_files(report) and path else None
    except UsageError:
        return None
