"""The folder of a watched run: written, torn, growing, and read again."""

import os
from pathlib import Path

import numpy as np
import pytest
import watched_folders

from torchdoctor.watch.inside import layout
from torchdoctor.watch.recording import Event, Process, Start, Steps, read_run, read_table


def steps(count: int) -> np.ndarray:
    rows = watched_folders.empty_rows(count, layout.STEP_COLUMNS)
    rows["step"], rows["steps"] = np.arange(1, count + 1), 1
    rows["start_ns"] = 10**12 + np.arange(count) * 5_000_000
    rows["wait"], rows["forward"], rows["backward"] = 0.001, 0.0015, 0.0025
    rows["samples"] = 32
    return rows


def test_a_row_of_a_step_has_64_bytes() -> None:
    assert layout.row_of(layout.STEP_COLUMNS).size == 64
    assert np.dtype(list(layout.STEP_COLUMNS)).itemsize == 64
    for columns in (layout.PROCESS_COLUMNS, layout.MACHINE_COLUMNS):
        assert layout.row_of(columns).size == np.dtype(list(columns)).itemsize


def test_a_run_reads_as_it_was_written(tmp_path: Path) -> None:
    start = Start(host="a", pid=7, command=["python", "t.py"], cwd="/", start_unix_ns=10**18)
    watched_folders.write_start(
        tmp_path / "watch", start, watched_folders.empty_rows(3, layout.MACHINE_COLUMNS)
    )
    for rank in (1, 0):
        process = Process(host="a", pid=20 - rank, rank=rank, world_size=2, start_unix_ns=10**18)
        events = [Event(t_ns=5, step=1, kind="input", text="32x10")]
        watched_folders.write_process(tmp_path / "watch", process, steps(4), events=events)
    run = read_run(tmp_path)
    assert [log.process.rank for log in run.processes] == [0, 1]
    assert run.starts == [start]
    log = run.processes[0].steps
    assert log.step.tolist() == [1, 2, 3, 4]
    assert np.allclose(log.step_s, 0.005) and np.allclose(log.samples, 32)
    assert np.isnan(log.entry_ns).all() and log.plain.all()
    assert run.processes[0].events[0].text == "32x10"


def test_the_process_that_started_first_comes_first_whatever_its_number(tmp_path: Path) -> None:
    """The text "1065" comes before "998": a process it started was taken for the program."""
    for pid, start in ((1065, 10**18 + 10**9), (998, 10**18)):
        process = Process(host="a", pid=pid, start_unix_ns=start)
        watched_folders.write_process(tmp_path / "watch", process, steps(4))
    assert [log.process.pid for log in read_run(tmp_path).processes] == [998, 1065]


def test_a_file_that_nothing_was_written_to_yet_is_synced_without_an_error(tmp_path: Path) -> None:
    """Of a program without any event in its first seconds the recorder was said to have failed."""
    file = layout.AppendedFile(str(tmp_path / "x.events"))
    assert file.flush()
    file.sync()


def test_times_of_an_exchange_are_exact_enough(tmp_path: Path) -> None:
    rows = steps(2)
    rows["entry"], rows["exchanged"] = layout.coded(0.1), layout.coded(0.25)
    log = Steps(rows=rows)
    assert np.allclose(log.entry_ns - log.start_ns, 0.1e9, rtol=3e-4)
    assert np.allclose(log.exchanged_ns - log.start_ns, 0.25e9, rtol=3e-4)
    assert layout.coded(0) == 0 and layout.coded(1e9) == 65535


@pytest.mark.parametrize("cut", [0, 5, 20, 100, 64 * 11 + 30])
def test_a_torn_file_gives_its_whole_rows(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.steps"
    watched_folders.write_table(path, layout.STEP_COLUMNS, steps(20))
    size = path.stat().st_size
    os.truncate(path, cut)
    assert len(read_table(path, layout.STEP_COLUMNS)) == max(0, (cut - (size - 20 * 64)) // 64)


def test_rows_that_a_power_cut_left_empty_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.steps"
    rows = steps(6)
    rows[3] = np.zeros((), rows.dtype)
    watched_folders.write_table(path, layout.STEP_COLUMNS, rows)
    assert read_table(path, layout.STEP_COLUMNS)["step"].tolist() == [1, 2, 3, 5, 6]


def test_a_table_of_another_version_is_read_by_its_names(tmp_path: Path) -> None:
    path = tmp_path / "x.sensors"
    columns = (*layout.PROCESS_COLUMNS[:4], ("unheard_of", "<f8"))
    rows = watched_folders.empty_rows(2, columns)
    rows["t_ns"], rows["step"] = [1, 2], [10, 20]
    watched_folders.write_table(path, columns, rows)
    read = read_table(path, layout.PROCESS_COLUMNS)
    assert read["step"].tolist() == [10, 20] and np.isnan(read["rss_bytes"]).all()


def test_a_growing_file_is_read_from_where_one_was(tmp_path: Path) -> None:
    file = layout.AppendedFile(str(tmp_path / "x.steps"), layout.table_head(layout.STEP_COLUMNS))
    rows = steps(5)
    file.add(rows[:3].tobytes())
    assert file.flush()
    assert len(read_table(tmp_path / "x.steps", layout.STEP_COLUMNS)) == 3
    file.add(rows[3:].tobytes())
    assert file.flush()
    later = read_table(tmp_path / "x.steps", layout.STEP_COLUMNS, since=3)
    assert later["step"].tolist() == [4, 5]


def test_nothing_watched_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path)


def test_a_row_of_many_steps_counts_for_each_of_them() -> None:
    rows = steps(120)
    rows["steps"][100:] = 50
    rows["step"][100:] = 100 + 50 * np.arange(1, 21)
    rows["forward"][100:] = 50 * 0.0001
    rows["wait"][100:] = rows["backward"][100:] = 0
    read = Steps(rows=rows)
    assert read.median_s() == pytest.approx(0.0001)
    assert np.allclose(read.each().step_s, 0.005) and len(read.each()) == 100
    assert Steps(rows=rows[:100]).median_s() == pytest.approx(0.005)
