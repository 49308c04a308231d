"""The launches of a run folder -> the times of their steps, on one clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchdoctor.machine.sensor_columns import SensorColumns
from torchdoctor.observe.events import Events, read_channel
from torchdoctor.observe.step_finding import boundary_rows, training_processes
from torchdoctor.observe.steps import count_samples
from torchdoctor.pairs.launch_timing import measured_edges
from torchdoctor.words import Boundary

BASELINE = "baseline"
_MOST_RATES = 100  # points of samples per second in one launch


@dataclass(frozen=True, kw_only=True)
class LaunchSteps:
    """Steps of one timed launch's measured window.

    edges_ns: boundaries on the system's monotonic clock, int64 of shape (steps + 1,).
    fixes: (id, settings) of those that were on; empty for the untouched program.
    """

    name: str  # the folder's, without its number: BASELINE for the untouched program
    edges_ns: NDArray[np.int64]
    fixes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def step_s(self) -> NDArray[np.float64]:
        """Return seconds of each step; shape (steps,)."""
        return np.diff(self.edges_ns) / 1e9


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The observing launch: the untouched program from its first step on.

    edges: rows of `events` (the main trainer's) that begin a step.
    rates: (time in ns, samples per second of all trainers together), of several steps each.
    """

    events: Events
    edges: NDArray[np.int64]
    rates: list[tuple[int, float]]
    sensors: SensorColumns | None

    @property
    def wall_offset_ns(self) -> int | None:
        """Return what the launch's times lack to the wall clock's; None: not known."""
        known = self.sensors is not None and len(self.sensors.wall_offset_ns)
        return int(self.sensors.wall_offset_ns[0]) if self.sensors is not None and known else None


def timed_launches(run_folder: Path) -> list[LaunchSteps]:
    """Return timed launches that measured a step, in order; what is damaged is left out."""
    launches = []
    for folder in sorted((run_folder / "launches").glob("*")):
        plan = _plan(folder)
        if plan.get("purpose") != "time":
            continue
        edges = measured_edges(folder / "channel")
        if len(edges) > 1:
            fixes = [(fix["id"], fix["settings"]) for fix in plan.get("fixes", [])]
            name = folder.name.partition("-")[2]
            launches.append(LaunchSteps(name=name, edges_ns=edges, fixes=fixes))
    return launches


def observed(run_folder: Path, boundary: Boundary) -> Observed | None:
    """Return the observing launch of a run; None where it left nothing.

    Args:
        run_folder: of the run.
        boundary: what separates iterations, as the report says.
    """
    for folder in sorted((run_folder / "launches").glob("*")):
        if _plan(folder).get("purpose") == "observe":
            return _observed(folder, boundary)
    return None


def _observed(folder: Path, boundary: Boundary) -> Observed | None:
    events, facts, _ = read_channel(folder / "channel")
    trainers = [events[pid] for pid in training_processes(events, facts)]
    if not trainers:
        return None
    edges = boundary_rows(trainers[0], boundary)
    if len(edges) < 2:
        return None
    try:
        sensors = SensorColumns.load(folder / "sensors.npz")
    except (OSError, ValueError, KeyError):
        sensors = None
    return Observed(
        events=trainers[0], edges=edges, rates=_rates(trainers, boundary), sensors=sensors
    )


def _rates(trainers: Sequence[Events], boundary: Boundary) -> list[tuple[int, float]]:
    """Return samples per second; empty where batches have no size."""
    rows = [boundary_rows(events, boundary) for events in trainers]
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


def _plan(folder: Path) -> dict[str, Any]:
    try:
        plan = msgspec.json.decode((folder / "plan.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return plan if isinstance(plan, dict) else {}
