"""Writes a watched run's folder without a run: for tests and simulations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from torchdoctor.probe.measure.facts import write_json as write_whole
from torchdoctor.watch import recording
from torchdoctor.watch.inside import layout
from torchdoctor.watch.recording import Event, Process, Rows, Start


def empty_rows(count: int, columns: layout.Columns) -> Rows:
    """Return rows to fill in; measurements are NaN, counts and phases 0."""
    rows = np.zeros(count, np.dtype(list(columns)))
    for name, kind in columns:
        if columns is not layout.STEP_COLUMNS and kind.startswith("<f"):
            rows[name] = np.nan
    return rows


def write_process(
    folder: Path,
    process: Process,
    steps: Rows,
    sensors: Rows | None = None,
    events: Iterable[Event] = (),
) -> str:
    """Write the files of one process into a `watch` folder; return their stem."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = layout.stem(process.host, process.pid, process.start_unix_ns // 10**9)
    write_json(folder / f"{stem}.json", process)
    write_table(folder / f"{stem}.steps", layout.STEP_COLUMNS, steps)
    if sensors is not None:
        write_table(folder / f"{stem}.sensors", layout.PROCESS_COLUMNS, sensors)
    lines = [json.dumps(asdict(event)) + "\n" for event in events]
    (folder / f"{stem}.events").write_text("".join(lines), encoding="utf-8")
    return stem


def write_start(folder: Path, start: Start, machine: Rows | None = None) -> None:
    """Write what torchdoctor's own process on one host writes."""
    folder.mkdir(parents=True, exist_ok=True)
    recording.write_start(folder, start)
    if machine is not None:
        name = f"machine-{start.host}-{start.pid}.sensors"
        write_table(folder / name, layout.MACHINE_COLUMNS, machine)


def write_table(path: Path, columns: layout.Columns, rows: Rows) -> None:
    """Write a whole table."""
    path.write_bytes(layout.table_head(columns) + rows.astype(list(columns)).tobytes())


def write_json(path: Path, content: Process | Start) -> None:
    """Write a dataclass as JSON."""
    write_whole(str(path), asdict(content))
