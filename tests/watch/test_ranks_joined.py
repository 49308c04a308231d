"""Logs of ranks and nodes on one clock: who waits for whom; ranks that start late, die or hang."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import watch_ranks
import watch_simulation as simulation
import watched_folders

from torchdoctor.watch.alerts import Alerts
from torchdoctor.watch.inside import layout
from torchdoctor.watch.ranks import ranks_of
from torchdoctor.watch.recording import Process, read_run
from torchdoctor.watch.summary import summary_of

NOW_S = simulation.START_UNIX_NS / 1e9


def test_nodes_with_clocks_three_seconds_apart_are_joined(tmp_path: Path) -> None:
    watch_ranks.write_ranks(tmp_path / "watch", ranks=6, steps=600, slow=3, per_host=2)
    run = read_run(tmp_path)
    joined = ranks_of(run)
    offsets = [rank.clock_offset_s for rank in joined.times]
    assert offsets == pytest.approx([0, 0, 3, 3, 6, 6], abs=1e-3)
    behind = joined.slowest
    assert joined.rank == 3 and behind is not None and behind.finding is not None
    assert (behind.fact.values["rank"], behind.fact.values["host"]) == (3, "node1")
    longer = next(x for x in behind.finding.evidence if x.fact == "longer")
    assert longer.values["parts"][0]["name"] == "waiting for data"
    assert joined.times[3].last_share == 1.0
    # The others wait 40 ms of about 240 ms, the slowest not at all.
    assert joined.times[3].wait_s == pytest.approx(0, abs=1e-3)
    assert joined.times[0].wait_s == pytest.approx(0.042, abs=0.003)
    assert summary_of(run).cause == behind


def test_even_ranks_and_a_single_process_have_no_straggler(tmp_path: Path) -> None:
    base = simulation.steady(2 / 60)
    for part in simulation.ranks_of(base, slow=0, step=len(base.steps)):
        process = Process(host="a", pid=10 + (part.rank or 0), rank=part.rank, world_size=4)
        watched_folders.write_process(tmp_path / "four", process, part.steps, part.process)
    joined = ranks_of(read_run(tmp_path / "four"))
    assert len(joined.times) == 4 and joined.rank is None and joined.slowest is None
    watched_folders.write_process(
        tmp_path / "single", Process(host="a", pid=1), base.steps, base.process
    )
    assert not ranks_of(read_run(tmp_path / "single")).times


def signs(until_s: float, phase: int) -> np.ndarray:
    rows = watched_folders.empty_rows(int(until_s / 5), layout.PROCESS_COLUMNS)
    at_ns = (np.arange(len(rows)) * 5e9).astype(np.int64)
    rows["t_ns"], rows["unix_ns"] = simulation.START_NS + at_ns, simulation.START_UNIX_NS + at_ns
    rows["phase"] = phase
    return rows


def write_rank(
    folder: Path, rank: int, until_s: float, phase: int, late_s: float = 0.0, pid: int = 50
) -> None:
    """Write a rank that makes steps of 0.1 s for half a minute, and lives for `until_s`."""
    steps = watched_folders.empty_rows(300, layout.STEP_COLUMNS)
    steps["step"], steps["steps"] = np.arange(1, 301), 1
    steps["forward"] = 0.1
    steps["start_ns"] = simulation.START_NS + (np.arange(300) * 1e8).astype(np.int64)
    process = Process(
        host="a",
        pid=pid + rank,
        rank=rank,
        world_size=4,
        start_ns=simulation.START_NS + int(late_s * 1e9),
        start_unix_ns=simulation.START_UNIX_NS + int(late_s * 1e9),
    )
    watched_folders.write_process(folder, process, steps, signs(until_s, phase))


def told(folder: Path, now_s: float) -> list[tuple[str, int | None, dict[str, Any]]]:
    watcher = Alerts(folder)
    alerts = [(x.kind, x.rank, x.fact.values) for x in watcher.new(NOW_S + now_s)]
    assert not watcher.new(NOW_S + now_s + 1), "an alert is told once"
    return alerts


def test_a_rank_that_died_is_named(tmp_path: Path) -> None:
    for rank in range(4):
        write_rank(tmp_path, rank, 30 if rank == 1 else 70, layout.BACKWARD)
    ((kind, rank, values),) = told(tmp_path, 70)
    assert (kind, rank, values["step"]) == ("dead", 1, 300)


def test_a_rank_that_hangs_is_named_with_its_phase(tmp_path: Path) -> None:
    for rank in range(4):
        write_rank(tmp_path, rank, 85, layout.WAIT if rank == 2 else layout.BACKWARD)
    ((kind, rank, values),) = told(tmp_path, 85)
    assert (kind, rank, values["phase"]) == ("hangs", 2, "wait")
    assert not told(tmp_path, 60), "45 s are not over"


def test_a_rank_that_starts_late_and_one_that_is_missing_are_named(tmp_path: Path) -> None:
    for rank in range(4):
        write_rank(tmp_path / "a", rank, 45, layout.FORWARD, 44 if rank == 3 else 0)
    ((kind, rank, values),) = told(tmp_path / "a", 45)
    assert (kind, rank) == ("late", 3) and values["late_s"] == pytest.approx(44, abs=0.5)
    for rank in range(3):
        process = Process(
            host="a",
            pid=rank + 1,
            rank=rank,
            world_size=4,
            start_ns=simulation.START_NS,
            start_unix_ns=simulation.START_UNIX_NS,
        )
        none = watched_folders.empty_rows(0, layout.STEP_COLUMNS)
        watched_folders.write_process(tmp_path / "b", process, none, signs(70, layout.OTHER))
    ((kind, _, values),) = told(tmp_path / "b", 65)
    assert (kind, values["ranks"], values["world"]) == ("late", [3], 4)


def test_a_run_that_ended_has_no_dead_ranks(tmp_path: Path) -> None:
    for rank in range(4):
        write_rank(tmp_path, rank, 30, layout.BACKWARD)
    assert not told(tmp_path, 500)


def test_ranks_that_are_started_again_are_neither_late_nor_dead(tmp_path: Path) -> None:
    for rank in range(4):
        write_rank(tmp_path, rank, 30, layout.BACKWARD)
        write_rank(tmp_path, rank, 70, layout.BACKWARD, late_s=35, pid=90)
    assert not told(tmp_path, 70)
