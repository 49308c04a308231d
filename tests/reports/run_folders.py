"""A run folder as a run leaves it, with steps of known length, and the report about it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from compared_pairs import synthetic, trace_of
from samples import SAMPLES

from torchdoctor.machine.sensor_columns import SensorColumns
from torchdoctor.probe import step_log
from torchdoctor.schema import RecommendedFix, Report, TraceStatistics

WALL_S = 1_700_000_000  # when the monotonic clock was 0
OBSERVED_MS, BASELINE_MS, RECOMMENDED_MS = 100, 90, 50
SAMPLES_PER_STEP = 8
OBSERVED_STEPS, MEASURED_STEPS = 20, 12
_PID = 3
_MS = 1_000_000


def report_with_run(folder: Path) -> Report:
    """The report of a slow loader, with two launches of each kind in `folder`."""
    report = SAMPLES["loader_bound"]()
    assert report.steps is not None
    steps = replace(report.steps, warmup_steps=4, boundary=replace(report.steps.boundary, ident=0))
    assert steps.boundary.kind == "loader"
    fixes = [*report.recommendation.fixes, RecommendedFix(fix="fused-optimizer")]
    report = replace(report, recommendation=replace(report.recommendation, fixes=fixes))
    recommended = [{"id": f.fix, "settings": f.settings} for f in report.recommendation.fixes]
    start_ms = 10_000
    _launch(folder, "001-observe", "observe", _steps(start_ms, OBSERVED_MS, OBSERVED_STEPS))
    columns = _sensors(start_ms)
    columns.save(folder / "launches" / "001-observe" / "sensors.npz")
    trace = _launch(folder, "002-profile", "profile", []) / "channel" / f"trace-{_PID}.json.gz"
    trace.write_bytes(gzip.compress(trace_of().text()))
    for number, (name, fixes, step_ms) in enumerate(
        [
            ("baseline", [], BASELINE_MS),
            ("set", recommended, RECOMMENDED_MS),
            ("patch", [], RECOMMENDED_MS),  # no fix is on, and yet it is not the baseline
            ("loader-workers", recommended[:1], 70),
            ("set", recommended, RECOMMENDED_MS),
            ("baseline", [], BASELINE_MS),
        ],
        3,
    ):
        rows = _steps(start_ms + 5000 * number, step_ms, MEASURED_STEPS, window=True)
        _launch(folder, f"{number:03d}-{name}", "time", rows, fixes)
    profiled = TraceStatistics(path=str(trace), steps=5, step_times_s=[0.0007] * 5)
    return replace(report, steps=steps, trace=profiled, run_folder=str(folder))


def ranks_folder(folder: Path) -> list[Path]:
    """Two ranks' traces as torch.profiler's handler names them; the collectives end together."""
    folder.mkdir(parents=True)
    paths = []
    for rank in range(2):
        trace = trace_of(loader_us=300.0 + 200 * rank, collective_us=300.0 - 200 * rank)
        document = trace.document(distributedInfo={"rank": rank, "world_size": 2})
        path = folder / f"node-a_{100 + rank}.170000000000{rank}.pt.trace.json"
        path.write_text(json.dumps(document))
        paths.append(path)
    return paths


def finding_trace(path: Path) -> Path:
    """A trace that is slow for its data loader."""
    path.write_bytes(synthetic.every_branch().text())
    return path


def _launch(
    folder: Path, name: str, purpose: str, rows: Sequence, fixes: Sequence[dict] = ()
) -> Path:
    launch = folder / "launches" / name
    (launch / "channel").mkdir(parents=True)
    (launch / "plan.json").write_text(json.dumps({"purpose": purpose, "fixes": list(fixes)}))
    if len(rows):
        events = launch / "channel" / f"events-{_PID}.bin"
        events.write_bytes(np.array(rows, dtype="<i8").tobytes())
    return launch


def _steps(start_ms: int, step_ms: int, steps: int, window: bool = False) -> list[tuple]:
    """Half of each step is waited for data, a fifth is forward, a quarter is backward."""
    rows: list[tuple] = []
    # Of a loader, the first fetch begins no step: nothing was learned before it.
    for number in range(steps + (1 if window else 2)):
        begin = (start_ms + number * step_ms) * _MS
        if window and number == 0:
            rows.append((step_log.WINDOW_BEGIN, 0, begin - 1, 0))
        if window:
            rows.append((step_log.BOUNDARY, 0, begin, number))
        for code, at, value in (
            (step_log.FETCH_BEGIN, 0.0, 0),
            (step_log.FETCH_END, 0.5, SAMPLES_PER_STEP),
            (step_log.FORWARD_BEGIN, 0.5, 0),
            (step_log.FORWARD_END, 0.7, 3),
            (step_log.BACKWARD_BEGIN, 0.7, 0),
            (step_log.BACKWARD_END, 0.95, -1),
            (step_log.OPTIMIZER_BEGIN, 0.95, 0),
            (step_log.OPTIMIZER_END, 0.98, 0),
        ):
            rows.append((code, 0, begin + int(at * step_ms * _MS), value))
    return rows


def _sensors(start_ms: int) -> SensorColumns:
    """Two cores, one of them half busy; 2 GB; a GPU whose memory was not measured."""
    samples = 21
    t_ns = (start_ms + 100 * np.arange(samples, dtype=np.int64)) * _MS
    seconds = np.arange(samples) * 0.1
    return SensorColumns(
        wall_offset_ns=np.array([WALL_S * 10**9], dtype=np.int64),
        t_ns=t_ns,
        core_busy_s=np.stack([seconds, seconds / 2], axis=1),
        iowait_s=np.zeros(samples),
        gpu_utilization=np.full((samples, 1), 0.25),
        gpu_memory_bytes=np.full((samples, 1), np.nan),
        gpu_ours=np.ones(1),
        process_t_ns=t_ns,
        rss_bytes=np.full(samples, 2e9),
        network_bytes=seconds * 3e6,
        tree_cpu_s=seconds * 1.5,
        own_cpu_s=np.zeros(samples),
    )
