"""A real Ray cluster of several nodes here: tasks that measure, are lost, are cancelled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest
from cluster_pairs import ended, launches, median_ratio, pair, program, wait_for

from torchdoctor.clusters.fleet import Fleet
from torchdoctor.pairs.failures import Lost

pytest.importorskip("ray", reason="Ray is not installed (pip install 'torchdoctor[ray]')")
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


@pytest.mark.slow
def test_tasks_measure_are_cancelled_and_lost(cluster: tuple[str, IO[str]], tmp_path: Path) -> None:
    from torchdoctor.clusters import ray_nodes

    address, orders = cluster
    found, doubts = ray_nodes.nodes(address, 3, 0)
    assert len(found) == 2 and doubts == ["--nodes asks for 3, and 2 nodes can run pairs."]
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
    wait_for(lambda: not running(), 10)
    nodes.begin(pair())
    wait_for(running)
    print("lose a node", file=orders, flush=True)
    assert isinstance(ended(nodes), Lost) and nodes.count == 1
    wait_for(lambda: not running(), 60)
