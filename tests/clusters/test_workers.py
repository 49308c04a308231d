"""Workers that a command starts: clocks apart, no torch, a full folder, a node that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cluster_pairs import SCRIPT, ended, launches, median_ratio, pair, program, wait_for
from light_torch import STARTS_LATE

from torchdoctor.bench.failures import Lost
from torchdoctor.clusters.commands import CommandNode
from torchdoctor.clusters.fleet import Fleet
from torchdoctor.schema import fact
from torchdoctor.schema.errors import UsageError

AHEAD = ["unshare", "--time", "--monotonic", "3", "--boottime", "3", "--fork"]


def node(folder: Path, name: str = "a", prefix: list[str] | None = None) -> CommandNode:
    return CommandNode(name=name, prefix=prefix or [], folder=folder, environment=os.environ)


def _clocks_can_differ() -> bool:
    try:
        return subprocess.run([*AHEAD, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    return tmp_path / "tasks"


@pytest.mark.slow
@pytest.mark.skipif(not _clocks_can_differ(), reason="no time namespace can be made here")
def test_a_node_whose_clock_is_three_seconds_ahead(tmp_path: Path, folder: Path) -> None:
    nodes = Fleet([node(folder, prefix=AHEAD)], launches(program(tmp_path)), [])
    nodes.begin(pair())
    assert median_ratio(ended(nodes)) > 2.0
    assert not [*folder.iterdir()], "task, result and log are gone"


def _without_torch(folder: Path) -> str:
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_node_without_torch_and_one_without_the_program(tmp_path: Path, folder: Path) -> None:
    known = program(tmp_path)
    lacking = replace(known, python=_without_torch(tmp_path))
    moved = replace(known, script=str(tmp_path / "gone.py"))
    for workload, why in ((lacking, "torch-not-on-node"), (moved, "path-not-on-node")):
        nodes = Fleet([node(folder)], launches(workload), [])
        nodes.begin(pair())
        lost = ended(nodes)
        assert isinstance(lost, Lost) and lost.why.fact == why and nodes.count == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small file system")
def test_a_full_shared_folder(tmp_path: Path, folder: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "small", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        workload = replace(program(tmp_path), python=_without_torch(tmp_path))
        # The task fits, and its result does not.
        fills = ["sh", "-c", f'head -c 1M /dev/zero > {folder}/full; exec "$@"', "sh"]
        nodes = Fleet([node(folder, prefix=fills)], launches(workload), [])
        nodes.begin(pair())
        lost = ended(nodes)
        assert isinstance(lost, Lost) and lost.why == fact(
            "no-space-for-results", folder=str(folder)
        )
        with contextlib.suppress(OSError):
            (folder / "more").write_bytes(bytes(1 << 20))
        with pytest.raises(UsageError, match="No space left on device"):
            nodes.begin(pair())
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_ranks_that_tell_nothing_are_told_of(tmp_path: Path) -> None:
    program(tmp_path, STARTS_LATE + SCRIPT)
    options = ["--quiet", "--no-fixes", "--budget=60s", "--output=out", "train.py"]
    command = [sys.executable, "-m", "torchdoctor", "run", *options]
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": "0"}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    doubts = json.loads((tmp_path / "out" / "report.json").read_text())["doubts"]
    assert any("runs in 2 processes, and 1 told of their steps" in doubt for doubt in doubts)


@pytest.mark.slow
def test_a_killed_node_costs_its_pair_and_closing_leaves_no_process(
    tmp_path: Path, folder: Path
) -> None:
    nodes = Fleet([node(folder)], launches(program(tmp_path)), [])
    script = str(tmp_path / "train.py")

    def running() -> list[int]:
        processes = psutil.process_iter(["pid", "cmdline"])
        return [x.pid for x in processes if script in (x.info["cmdline"] or [])]

    nodes.begin(pair())
    wait_for(running)
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "torchdoctor.clusters.worker" in process.cmdline():
                process.send_signal(signal.SIGKILL)
    assert isinstance(ended(nodes), Lost) and nodes.count == 1
    wait_for(lambda: not running())
    nodes.begin(pair())
    wait_for(running)
    nodes.close()
    assert not running() and not [x for x in folder.iterdir() if x.suffix != ".log"]
