"""Files that cannot be what a command reads: pipes, foreign numbers, our own files, torn logs."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import synthetic_traces as synthetic
import watched_folders

from torchdoctor.cli import front
from torchdoctor.runs.traces import trace_checkup
from torchdoctor.schema import Diagnosis, Environment, Report, WorkloadRecord
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import write_record
from torchdoctor.trace import device_order
from torchdoctor.trace.columns import Table
from torchdoctor.trace.nesting import innermost, nest
from torchdoctor.trace.reader import read_trace
from torchdoctor.trace.timeline import build_timeline
from torchdoctor.trace.what_if import what_if
from torchdoctor.watch.inside import layout
from torchdoctor.watch.recording import Process, read_run


def written(folder: Path, document: Any, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose", "pipe"],
        ["report", "pipe"],
        ["patch", "pipe"],
        ["compare", "pipe", "pipe"],
        ["gate", "--baseline", "pipe", "train.py"],
    ],
)
def test_a_pipe_is_refused_and_not_waited_for(words: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "train.py").write_text("")
    result = commands.torchdoctor(*words, cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1 and "pipe" in result.stderr


def test_a_pipe_in_the_folder_of_a_watched_run_is_passed_over(tmp_path: Path) -> None:
    rows = watched_folders.empty_rows(3, layout.STEP_COLUMNS)
    watched_folders.write_process(tmp_path / "watch", Process(host="a", pid=1), rows)
    for name in ("run-a-2.json", "b-1-2.json", "machine-a-1.sensors"):
        os.mkfifo(tmp_path / "watch" / name)
    assert len(read_run(tmp_path).processes) == 1


def test_a_working_folder_that_is_gone_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, kept = tmp_path / "gone", Path.cwd()
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        for words in (["diagnose", "x.json"], ["run", "train.py"], ["env"]):
            monkeypatch.setattr("sys.argv", ["torchdoctor", *words])
            with pytest.raises(SystemExit) as end:
                front.main()
            assert end.value.code == 2
            assert "working folder" in capsys.readouterr().err
    finally:
        os.chdir(kept)


@pytest.mark.parametrize(
    "device",
    [
        {"id": 0, "name": ["a"], "totalGlobalMem": {"a": 1}, "computeMajor": "x"},
        {"id": [0], "name": {"a": 1}, "totalGlobalMem": 10**30},
        {"id": 2**70, "name": "A100", "totalGlobalMem": None, "computeMajor": 1e300},
    ],
)
def test_odd_properties_of_a_device_are_not_known(device: dict, tmp_path: Path) -> None:
    path = written(tmp_path, synthetic.every_branch().document(deviceProperties=[device] * 2))
    for gpu in trace_checkup([str(path)]).environment.gpus:
        assert gpu.memory_bytes is None and gpu.compute_capability is None


@pytest.mark.parametrize("number", ["9" * 30, "\u00b2", "-1", ""])
def test_a_step_whose_number_is_none_is_a_step_all_the_same(number: str, tmp_path: Path) -> None:
    trace = synthetic.every_branch(steps=3)
    trace.events[1]["name"] = f"ProfilerStep#{number}"
    report = trace_checkup([str(written(tmp_path, trace.document()))])
    assert report.trace is not None and report.trace.steps == 3


@pytest.mark.parametrize("how", ["negative", "missing", "null", "text"])
def test_a_trace_without_any_duration_has_nothing_to_diagnose(how: str, tmp_path: Path) -> None:
    """Of negative durations it said that a fix gains 100x at most."""
    trace = synthetic.every_branch()
    for event in trace.events:
        if "dur" in event:
            odd = {"negative": -1 - event.pop("dur"), "null": None, "text": "?"}
            event |= {} if how == "missing" else {"dur": odd[how]}
    with pytest.raises(UsageError, match="no usable event"):
        trace_checkup([str(written(tmp_path, trace.document()))])


def test_own_files_are_no_traces_and_say_what_reads_them(tmp_path: Path) -> None:
    report = Report(
        workload=WorkloadRecord(command=["train.py"]),
        environment=Environment(),
        diagnosis=Diagnosis(bottleneck="none"),
    )
    write_record(report, tmp_path / "report.json")
    for name in ("report.json", "."):
        result = commands.torchdoctor("diagnose", name, cwd=tmp_path)
        assert result.returncode == 2 and "torchdoctor report " in result.stderr
    for name in ("process-5.json", "done-5.json", "turn.json", "plan.json"):
        written(tmp_path, {"purpose": "profile"}, name)
    written(tmp_path, synthetic.every_branch().document(), "trace-5.json")
    report = trace_checkup([str(tmp_path)])
    assert not any("left out" in sentence for sentence in report.beware)
    assert not any("passed over" in sentence for sentence in report.doubts)


@pytest.mark.parametrize(
    ("column", "value"),
    [("steps", 0), ("wait", np.nan), ("wait", np.inf), ("wait", -1.0), ("start_ns", 1 << 62)],
)
@pytest.mark.filterwarnings("error")
def test_rows_that_no_writer_writes_are_left_out(column: str, value: Any, tmp_path: Path) -> None:
    rows = watched_folders.empty_rows(50, layout.STEP_COLUMNS)
    rows["step"], rows["steps"] = np.arange(1, 51), 1
    rows["start_ns"] = 10**12 + np.arange(50) * 10**9
    rows["forward"] = 1.0
    rows[column][20] = value
    watched_folders.write_process(tmp_path / "watch", Process(host="a", pid=1), rows)
    [log] = read_run(tmp_path).processes
    assert log.steps.step.tolist() == [*range(1, 21), *range(22, 51)]
    for words in (["report", "."], ["top", "."]):
        assert commands.torchdoctor(*words, cwd=tmp_path).returncode == 0


def test_operators_of_many_threads_are_nested_as_those_of_each() -> None:
    rng = np.random.default_rng(0)
    start = rng.integers(0, 1000, 400)
    thread = rng.integers(0, 20, 400)
    end = start + rng.integers(0, 300, 400)
    table = Table(start, end, np.zeros(400, int), thread)
    asked, times = rng.integers(0, 22, 500), rng.integers(-5, 1400, 500)
    inside = innermost(table, nest(table), asked, times)
    for number in range(22):
        rows = np.flatnonzero(thread == number)
        alone = table.where(rows)
        own = asked == number
        expected = innermost(alone, nest(alone), asked[own], times[own])
        known = np.append(rows, -1)[expected]
        assert (inside[own] == known).all()


def test_streams_without_number_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of each waiting call and each stream took all memory."""
    monkeypatch.setattr(device_order, "_MOST_PAIRS", 3)
    trace = read_trace(io.BytesIO(synthetic.every_branch().text()), "trace.json")
    assert what_if(trace, build_timeline(trace)) is None
