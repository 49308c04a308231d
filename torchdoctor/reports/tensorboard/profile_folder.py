"""Copies of the traces, by the names that profile tools look for."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

from torchdoctor.reports.tensorboard.measured import trace_files
from torchdoctor.words import Report

_NAMED = re.compile(r".+\.pt\.trace\.json(\.gz)?")  # as torch's tensorboard_trace_handler names it
_GZIP_MAGIC = b"\x1f\x8b"


def write_traces(report: Report, folder: Path) -> None:
    """Copy each trace to `<folder>/<worker>.<time>.pt.trace.json[.gz]`; its content stays.

    The worker is `<host>_<pid>` for a trace of our own launches. A trace that was given keeps its
    name where that is such a name, else the worker is `<its name>_<rank>`: the profiler plugin
    tells a job's ranks by their workers.
    """
    ranks = {rank.path: rank.rank for rank in report.ranks}
    for number, path in enumerate(trace_files(report)):
        folder.mkdir(parents=True, exist_ok=True)
        own = bool(report.run_folder)
        name = _name(path, own, ranks.get(str(path), number))
        target = folder / name
        if target.exists():  # two folders of ranks may repeat a name
            target = folder / f"{number}_{name}"
        shutil.copyfile(path, target)


def _name(path: Path, own: bool, rank: int) -> str:
    if not own and _NAMED.fullmatch(path.name):
        return path.name
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    if own:  # trace-<pid>.json.gz
        worker = f"{socket.gethostname()}_{path.name.removeprefix('trace-').partition('.')[0]}"
    else:
        worker = f"{path.name.removesuffix('.gz').removesuffix('.json')}_{rank}"
    worker = re.sub(r"[^A-Za-z0-9_-]+", "-", worker)
    written_ns = path.stat().st_mtime_ns
    return f"{worker}.{written_ns}.pt.trace.json{'.gz' if packed else ''}"
