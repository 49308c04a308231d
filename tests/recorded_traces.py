"""Traces of real trainings, which are no part of the project: tests that need them skip without.

Each is read once for all tests of a process.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import Report, TraceStatistics
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.summary import summarise

PROJECT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("TORCHDOCTOR_TRACES", PROJECT.parent / "shared" / "traces"))


def path(name: str) -> Path:
    """Return the file of a trace; skip the test where there is none."""
    file = FOLDER / f"{name}.json.gz"
    if not file.exists():
        pytest.skip(f"no recorded trace {file} (set TORCHDOCTOR_TRACES to their folder)")
    return file


@functools.cache
def statistics(name: str) -> TraceStatistics:
    """Return what is counted in a trace."""
    return summarise(read_trace(path(name)))


@functools.cache
def report(name: str) -> Report:
    """Return the report that `torchdoctor diagnose` makes of a trace."""
    return trace_checkup([str(path(name))])
