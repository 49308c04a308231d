"""A real Slurm of several nodes here: jobs that measure, are cancelled, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_pairs import (
    LOADING,
    OWN_LOADER,
    SCRIPT,
    ended,
    gate_of_two_nodes,
    launches,
    median_ratio,
    pair,
    program,
    remarked,
    wait_for,
)
from slurm_cluster import SlurmCluster, free_ports, missing

from torchdoctor.bench.failures import Lost
from torchdoctor.clusters import allocation, slurm
from torchdoctor.clusters.fleet import Fleet
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.schema import Workload
from torchdoctor.schema.errors import UsageError

pytestmark = pytest.mark.xdist_group("slurm")  # which is started once
RUN = [sys.executable, "-m", "torchdoctor", "run", "--quiet"]


@pytest.fixture(scope="module")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if (why := missing()) is not None:
        pytest.skip(f"no Slurm can be started: {why}")
    try:
        with SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=2) as started:
            yield started
    except (TimeoutError, OSError) as error:
        pytest.skip(f"no Slurm can be started: {error}")


@pytest.fixture
def cluster(started_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    yield started_cluster
    started_cluster.end_all()


def jobs_fleet(
    cluster: SlurmCluster, workload: Workload, monkeypatch: pytest.MonkeyPatch, options: str = ""
) -> Fleet:
    """The nodes of a run in a job of its own, without this one."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("TORCHDOCTOR_JOB", "torchdoctor-test")
    tasks = Path(workload.cwd, "tasks")
    tasks.mkdir(exist_ok=True)
    nodes, doubts = slurm.nodes(f"--time=10 {options}", 2, 0, tasks)
    assert [node.name for node in nodes] == ["this node", "job-2"] and not doubts
    return Fleet(nodes[1:], launches(workload), [])


@pytest.mark.slow
def test_a_job_measures_a_pair_and_a_pre_empted_one_costs_its_pair(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = jobs_fleet(cluster, program(tmp_path), monkeypatch)
    nodes.begin(pair())
    wait_for(lambda: any("RUNNING" in job for job in cluster.jobs()))
    cluster.said("scancel", "--name=torchdoctor-test-pair")
    assert isinstance(ended(nodes), Lost) and nodes.count == 1
    nodes.begin(pair())
    assert median_ratio(ended(nodes)) > 2.0
    [measured] = [x.values["nodes"] for x in nodes.doubts if x.fact == "nodes-measured"]
    assert [node["pairs"] for node in measured] == [1]
    nodes.begin(pair())
    wait_for(lambda: any("RUNNING" in job for job in cluster.jobs()))
    nodes.close()
    wait_for(lambda: not cluster.jobs())


# Each step takes three times as long on the second node.
SLOWER_THERE = SCRIPT.replace(
    "time.sleep(", 'time.sleep((3 if os.environ["SLURMD_NODENAME"] == "node2" else 1) * '
)


@pytest.mark.slow
def test_the_ratio_of_a_pair_is_the_same_on_a_slower_node(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both launches of a pair run on one node: of two nodes its ratio would be 1.3 or 12."""
    workload = program(tmp_path, SLOWER_THERE.replace("0.02", "0.08"))
    for node in cluster.nodes:
        nodes = jobs_fleet(cluster, workload, monkeypatch, f"--nodelist={node}")
        nodes.begin(pair(LaunchSpec(name="less", variables={"STEP_S": "0.02"})))
        assert 2.0 < median_ratio(ended(nodes)) < 8.0
        assert nodes.doubts[0].values["nodes"] == [{"node": node, "pairs": 1}]


ALLOCATED = """
import sys
from pathlib import Path
from cluster_pairs import LOADING, ended, launches, median_ratio, pair, program
from torchdoctor.clusters import slurm
from torchdoctor.clusters.fleet import Fleet

folder = Path(sys.argv[1])
(folder / "tasks").mkdir()
nodes, doubts = slurm.nodes("", 3, 0, folder / "tasks")
fleet = Fleet(nodes[1:], launches(program(folder)), doubts)
fleet.begin(pair())
ratio = median_ratio(ended(fleet))
print(len(nodes), ratio > 2.0, *(doubt.fact for doubt in fleet.doubts), sep="\\n")
"""


@pytest.mark.slow
def test_in_a_job_of_two_nodes_the_other_one_measures(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "allocated.py").write_text(ALLOCATED)
    script = tmp_path / "job.sh"
    command = f"{sys.executable} {tmp_path}/allocated.py {tmp_path}"
    here = Path(__file__).parent
    paths = f"{here}:{here.parent}"
    script.write_text(f"#!/bin/sh\nexport PYTHONPATH={paths}\n{command}\n")
    options = ["--wait", "--nodes=2", "--time=5", f"--output={tmp_path}/out"]
    cluster.said("sbatch", *options, str(script))
    count, faster, *doubts = (tmp_path / "out").read_text().splitlines()
    assert (count, faster) == ("2", "True"), doubts
    assert doubts[:2] == ["nodes-measured", "fewer-nodes-in-job"]


GROUP = """
import torch

torch.distributed.init_process_group("gloo")
"""


@pytest.mark.slow
def test_a_training_that_torchrun_starts_on_two_nodes_is_seen_and_ended(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(GROUP + SCRIPT)
    options = "--no-fixes --budget=100s --output=out"
    agent = "-m torch.distributed.run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=localhost:0"
    agent = agent.replace(":0", f":{free_ports(1)[0]}")
    trained = f"srun --nodes=2 --ntasks=2 {sys.executable} {agent} train.py"
    lines = ["#!/bin/sh", f"{' '.join(RUN)} {options} -- {trained}", "squeue --steps --noheader"]
    (tmp_path / "job.sh").write_text("\n".join(lines))
    there = [f"--chdir={tmp_path}", f"--output={tmp_path}/log"]
    cluster.said("sbatch", "--wait", "--nodes=2", "--time=5", *there, str(tmp_path / "job.sh"))
    log = (tmp_path / "log").read_text()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["steps"]["trainers"] == 2, log
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1], log
    assert "srun-outside-layer" in remarked(report)
    assert "batch" in log.splitlines()[-1] and "node[1-2]" not in log, "no step of srun is left"


# The second launch of the job's first life waits for its end.
REQUEUED = """
import os, time
if not os.environ.get("SLURM_RESTART_COUNT") and "-profile" in os.environ["TORCHDOCTOR_PLAN"]:
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_job_that_is_requeued_tells_both_times_what_it_measured(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(REQUEUED + LOADING)
    command = f"{' '.join(RUN)} --no-fixes --output=out train.py"
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{command}\n")
    there = ["--requeue", "--time=2", f"--chdir={tmp_path}", f"--output={tmp_path}/log"]
    job = cluster.said("sbatch", "--parsable", *there, str(tmp_path / "job.sh")).strip()
    wait_for(lambda: any(tmp_path.glob("out/launches/*profile*")))
    cluster.said("scontrol", "requeue", job)
    wait_for(lambda: any("PENDING" in line for line in cluster.jobs()))
    before = tmp_path / "out" / "report.json"
    wait_for(before.exists, 60)
    assert json.loads(before.read_text())["interrupted"]
    # In the second in which its first life was ended, a node would refuse it as revoked.
    cluster.said("scontrol", "update", f"jobid={job}", "starttime=now+3seconds")
    again = tmp_path / "out-1" / "report.json"
    wait_for(again.exists, 240)
    wait_for(lambda: not cluster.jobs(), 240)
    log = (tmp_path / "log").read_text()
    report = json.loads(again.read_text())
    assert not report["interrupted"] and report["steps"]["steps"] > 0, log
    remarks = remarked(report)
    assert "job-shortens-budget" in remarks and remarks["job-requeued"]["before"] == "out"


@pytest.mark.slow
def test_a_gate_leaves_a_node_without_torch_out(cluster: SlurmCluster, tmp_path: Path) -> None:
    import torch

    with cluster.lost("node2"):
        cluster.find_node("node2", without=Path(torch.__file__).parent)
        remarks = gate_of_two_nodes(tmp_path, "slurm", cluster.environment)
    assert [row["node"] for row in remarks["nodes-measured"]["nodes"]] == ["node1"]
    why = remarks["node-left-out"]["why"]
    assert why["fact"] == "torch-not-on-node" and why["values"]["node"] == "node2"


@pytest.mark.slow
def test_a_shared_folder_that_gets_full_ends_the_search_in_a_sentence(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "small", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        run = begun(cluster, tmp_path, "small/out")
        given_up = time.monotonic() + 240
        with (small / "full").open("wb", buffering=0) as full:
            while run.poll() is None and time.monotonic() < given_up:
                with contextlib.suppress(OSError):
                    full.write(bytes(1 << 20))
                    continue
                time.sleep(0.1)  # what is removed meanwhile leaves no room
        assert run.returncode == 2
        log = " ".join((tmp_path / "log").read_text().split())
        assert "No space" in log and "Traceback" not in log and "loader workers" in log, log
        wait_for(lambda: not cluster.jobs(), 60)
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def begun(cluster: SlurmCluster, folder: Path, output: str = "out") -> subprocess.Popen[bytes]:
    """A whole run on two nodes once the second one trains; its task has a folder of its own."""
    (folder / "train.py").write_text(OWN_LOADER)
    command = [*RUN, "--on", "slurm", "--nodes=2", "--budget=120s", f"--output={output}"]
    command += ["--fixes=loader-workers", "--steps=100", "train.py"]
    run = cluster.begin(command, folder, TMPDIR=str(folder))

    def trains() -> bool:
        assert run.poll() is None, (folder / "log").read_text()
        return any(folder.glob("torchdoctor-pair-*/launches/*/channel/*")) and any(
            "RUNNING" in job and "-pair" in job for job in cluster.jobs()
        )

    wait_for(trains)
    return run


@pytest.mark.slow
def test_a_run_that_loses_a_node_and_is_interrupted_leaves_no_job_and_a_report(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    run = begun(cluster, tmp_path)
    with cluster.lost("node2"):
        # Another pair takes the place of the lost one, and waits for a node.
        wait_for(lambda: any("PENDING" in job and "-pair" in job for job in cluster.jobs()))
        run.send_signal(signal.SIGINT)
        assert run.wait(120) == 130, (tmp_path / "log").read_text()
        wait_for(lambda: not cluster.jobs(), 60)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["interrupted"] and report["steps"]["steps"] > 0
    lost = [remark["values"] for remark in report["remarks"] if remark["fact"] == "pair-lost"]
    # Of what srun says the last line counts, which is of the node or of its step.
    said = [f"{values['node']} {values['why']}" for values in lost]
    assert any("node2" in words or "aborted" in words for words in said), said
    assert "ran-in-job" in remarked(report)


@pytest.mark.slow
def test_what_slurm_does_not_run_is_no_verdict_of_a_gate(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """srun ends with 1 for a wrong partition, and with 0 where the node fails."""
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    wrong = ["gate", "--against=HEAD", "--on=slurm=--partition=nowhere", "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "torchdoctor", *wrong],
        cwd=tmp_path, env=cluster.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "nowhere" in done.stderr, "what srun says is shown"
    assert "srun" in done.stderr.strip().splitlines()[-1], "and named as the reason"
    slow = [*RUN, "--on=slurm=--nodelist=node2", "--output=out", "train.py"]
    run = cluster.begin(slow, tmp_path)
    wait_for(lambda: any("RUNNING" in job for job in cluster.jobs()))
    with cluster.lost("node2"):
        assert run.wait(120) == 2
    assert "NODE_FAIL" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_in_a_job_the_budget_ends_before_the_time_limit(cluster: SlurmCluster) -> None:
    code = (
        "from torchdoctor.clusters.allocation import within_job; print(within_job(3600.0));"
        "from torchdoctor.clusters.allocation import described; print(described())"
    )
    said = cluster.said("srun", "--nodes=1", "--time=2", sys.executable, "-c", code)
    budget, described = said.splitlines()
    assert 60.0 < float(budget.strip("(").split(",")[0]) <= 96.0
    assert "job-shortens-budget" in budget and "nodes node" in described and "s left" in described
    twice = [*RUN, "nothing.py"]
    several = ["srun", "--nodes=1", "--ntasks=2", *twice]
    done = subprocess.run(several, env=cluster.environment, capture_output=True, text=True)
    assert done.returncode != 0 and "srun" in done.stderr


def test_the_times_of_slurm() -> None:
    known = {"1-02:03:04": 93784.0, "5:06": 306.0, "30": 30.0, "UNLIMITED": None, "": None}
    assert {text: allocation.seconds_of(text) for text in known} == known


def test_options_that_are_none_of_srun() -> None:
    assert slurm.options_of("-p gpu --time='1:00'") == ["-p", "gpu", "--time=1:00"]
    with pytest.raises(UsageError, match="'partition=gpu'"):
        slurm.options_of("partition=gpu")


def test_outside_slurm_it_says_so(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    environment["PATH"] = str(tmp_path)
    command = [*RUN, "--on", "slurm", "train.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "srun was not found" in done.stderr
    for name in ("srun", "sinfo"):  # of a machine without the cluster's settings
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "controller does not answer" in done.stderr
