"""A real Ray cluster of several nodes here: tasks that measure, are lost, are cancelled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest
from cluster_pairs import (
    OWN_LOADER,
    ended,
    gate_of_two_nodes,
    launches,
    median_ratio,
    pair,
    program,
    remarked,
    wait_for,
)
from synthetic_traces import BASE, every_branch

from torchdoctor import __version__
from torchdoctor.bench.failures import Lost
from torchdoctor.clusters.fleet import Fleet
from torchdoctor.clusters.ray_traces import read_there

pytest.importorskip("ray", reason="Ray is not installed (pip install 'torchdoctor[ray]')")
pytestmark = pytest.mark.xdist_group("ray")  # which is started once
CLUSTER = Path(__file__).with_name("ray_cluster.py")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, IO[str]]]:
    """The address of two nodes, and where it is told to lose the second one."""
    import ray

    command = [sys.executable, str(CLUSTER), "2"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            pytest.skip("no Ray cluster can be started here")
        try:
            yield address, process.stdin
        finally:
            ray.shutdown()
            process.stdin.close()


def diagnosed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """How `torchdoctor diagnose` ended."""
    command = [sys.executable, "-m", "torchdoctor", "diagnose", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_nodes_read_a_folder_of_traces_to_the_same_report(
    cluster: tuple[str, IO[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranks").mkdir()
    for rank in range(3):
        trace = every_branch(steps=6, base=BASE + 3e6 * rank)  # clocks of nodes 3 s apart
        (tmp_path / "ranks" / f"rank{rank}.json").write_bytes(trace.text())
    (tmp_path / "ranks" / "rank3.json").write_text("{}")
    (tmp_path / "ranks" / "rank4.json").symlink_to("gone.json")
    monkeypatch.chdir(tmp_path)  # the report names the files as they were typed
    here, there = (diagnosed("ranks", "--details", *x) for x in ([], [f"--on=ray={cluster[0]}"]))
    assert (there.stdout, there.stderr) == (here.stdout, here.stderr) and here.returncode == 0
    text = " ".join(here.stdout.split())
    assert text.count("passed over") == 2 and "clocks" in text


def test_what_keeps_a_node_from_reading_a_trace(tmp_path: Path) -> None:
    gone = str(tmp_path / "rank0.json")
    unseen = read_there(gone, str(tmp_path), False, __version__)
    assert isinstance(unseen, str) and gone in unseen
    older = read_there(gone, str(tmp_path), False, "0.0.1")
    assert isinstance(older, str) and __version__ in older and "0.0.1" in older


def test_traces_are_read_by_nodes_of_ray_alone() -> None:
    done = diagnosed("ranks", "--on=slurm")
    assert done.returncode == 2 and "ray[=ADDRESS]" in done.stderr


@pytest.mark.slow
def test_tasks_measure_are_cancelled_and_lost(cluster: tuple[str, IO[str]], tmp_path: Path) -> None:
    from torchdoctor.clusters import ray_nodes

    address, orders = cluster
    found, doubts = ray_nodes.nodes(address, 3, 0)
    assert len(found) == 2
    assert [(doubt.fact, doubt.values) for doubt in doubts] == [
        ("fewer-nodes", {"asked": 3, "able": 2})
    ]
    script = str(tmp_path / "train.py")

    def running() -> bool:
        processes = psutil.process_iter(["cmdline"])
        return any(script in (x.info["cmdline"] or []) for x in processes)

    nodes = Fleet(found[1:], launches(program(tmp_path)), [])
    nodes.begin(pair())
    assert median_ratio(ended(nodes)) > 2.0
    nodes.begin(pair())
    wait_for(running)
    nodes.close()
    wait_for(lambda: not running(), 60)
    nodes.begin(pair())
    wait_for(running)
    print("lose a node", file=orders, flush=True)
    assert isinstance(ended(nodes), Lost) and nodes.count == 1
    wait_for(lambda: not running(), 60)
    print("find a node", file=orders, flush=True)


@pytest.mark.slow
def test_a_run_that_loses_a_node_and_is_interrupted_leaves_no_task(
    cluster: tuple[str, IO[str]], tmp_path: Path
) -> None:
    address, orders = cluster
    own = raylet_of_this_node(address)
    script = tmp_path / "train.py"
    script.write_text(OWN_LOADER)
    words = [sys.executable, "-m", "torchdoctor", "run", f"--on=ray={address}", "--nodes=2"]
    words += ["--budget=120s", "--output=out", "--fixes=loader-workers", "--steps=300"]
    words.append(str(script))
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log)

    def second_trains() -> bool:
        assert run.poll() is None, (tmp_path / "log").read_text()
        return bool(raylets_of(script) - {"", own})

    def pairs() -> int:
        return (tmp_path / "log").read_text().count("Nodes compare")

    try:
        wait_for(second_trains)
        before = pairs()
        print("lose a node", file=orders, flush=True)
        wait_for(lambda: pairs() > before)  # another pair takes the place of the lost one
        run.send_signal(signal.SIGINT)
        assert run.wait(120) == 130, (tmp_path / "log").read_text()
    finally:
        run.kill()
    wait_for(lambda: not raylets_of(script), 60)
    print("find a node", file=orders, flush=True)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["interrupted"] and report["steps"]["steps"] > 0
    assert "pair-lost" in remarked(report)


def raylet_of_this_node(address: str) -> str:
    """The node that a run here takes for its own: a task that is bound to it tells."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from torchdoctor.clusters import ray_nodes

    ray = ray_nodes.connected(address)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    task = ray.remote(os.getenv).options(num_cpus=0, scheduling_strategy=here)
    return str(ray.get(task.remote("RAY_RAYLET_PID")))


def raylets_of(script: Path) -> set[str]:
    """The nodes that run the program; "" for launches of the run itself."""
    processes = psutil.process_iter(["cmdline", "environ"])
    running = [x.info for x in processes if str(script) in (x.info["cmdline"] or [])]
    return {(x["environ"] or {}).get("RAY_RAYLET_PID", "") for x in running}


@pytest.mark.slow
def test_a_gate_on_two_nodes_finds_the_slower_version(
    cluster: tuple[str, IO[str]], tmp_path: Path
) -> None:
    assert "nodes-measured" in gate_of_two_nodes(tmp_path, f"ray={cluster[0]}", os.environ)
