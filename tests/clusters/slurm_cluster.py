"""Start a small Slurm of Debian's packages here: `python slurm_cluster.py FOLDER [NODES]`.

Every node is a slurmd of its own on a port of its own. It runs until it is ended, and then ends all
that it started. Only root can start it, as nodes start jobs as their users.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "scancel", "squeue")
READY_S = 30.0
CONFIGURATION = """
ClusterName=torchdoctor
SlurmctldHost={host}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={slurmd_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
InactiveLimit=60
MpiDefault=none
NodeName=node[1-{nodes}] NodeHostname={host} Port=[{first}-{last}] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Return why no Slurm can be started here, or None."""
    if os.geteuid() != 0:
        return "only root can start slurmd"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return f"the Debian packages slurmctld, slurmd, slurm-client, munge lack: {lacking}"
    return None


class SlurmCluster:
    """A Slurm of several nodes while it runs; a context."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder, self.nodes = folder.absolute(), [f"node{n}" for n in range(1, nodes + 1)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.begun: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Slurm's commands reach this cluster."""
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def __enter__(self) -> SlurmCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir()
        ports = free_ports(2 + len(self.nodes))
        text = CONFIGURATION.format(
            host=socket.gethostname(),
            folder=self.folder,
            port=ports[0],
            slurmd_port=ports[1],
            nodes=len(self.nodes),
            first=ports[2],
            last=ports[2] + len(self.nodes) - 1,
        )
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        try:
            named = ("socket", "pid-file", "log-file", "seed-file")
            files = [f"--{x}={self.folder}/munge.{x.partition('-')[0]}" for x in named]
            self._start("munged", ["--foreground", "--force", f"--key-file={key}", *files])
            _wait(lambda: (self.folder / "munge.socket").exists(), "munged")
            self._start("slurmctld", ["-D"])
            for node in self.nodes:
                self.start_node(node)
            _wait(self._all_idle, "the nodes")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.processes.values()][::-1]:
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start_node(self, node: str, without: Path | None = None) -> None:
        """Start the slurmd of a node; `without`: as `find_node`."""
        self._start(node, ["-D", "-N", node], "slurmd", without)

    @contextlib.contextmanager
    def lost(self, node: str) -> Iterator[None]:
        """Kill all that runs on a node, as its power does; in the end the node is there again."""
        self._kill(node)
        try:
            yield
        finally:
            self._kill(node)
            self.find_node(node)

    def _kill(self, node: str) -> None:
        self.processes[node].kill()
        self.processes[node].wait()
        here = {"SLURMD_NODENAME": node, "SLURM_CONF": str(self.folder / "slurm.conf")}
        jobs = [x for x in psutil.process_iter(["environ"]) if here.items() <= _environ(x).items()]
        for process in [*(step for job in jobs for step in _steps(job)), *jobs]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.said("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def find_node(self, node: str, without: Path | None = None) -> None:
        """Start a lost node again; `without`: what does not exist for it."""
        self.start_node(node, without)
        self.said("scontrol", "update", f"nodename={node}", "state=resume")
        _wait(self._all_idle, node)

    def begin(self, command: list[str], folder: Path, **variables: str) -> subprocess.Popen[bytes]:
        """Start a command in a folder, where its output is written to `log`."""
        with (folder / "log").open("wb") as log:
            environment = {**self.environment, **variables}
            started = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        self.begun.append(started)
        return started

    def end_all(self) -> None:
        """End what a test that failed has left, so that the next one finds the nodes free."""
        for process in self.begun:
            process.kill()
            process.wait()
        self.begun.clear()
        if self.jobs():
            self.said("scancel", "--me")
            _wait(self._all_idle, "the nodes")

    def said(self, *command: str) -> str:
        """Return what a command of Slurm prints."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=240
        ).stdout

    def jobs(self) -> list[str]:
        """Return the jobs that are there, each with its state."""
        return self.said("squeue", "--noheader", "--format=%i %T %j").splitlines()

    def _start(
        self,
        name: str,
        options: list[str],
        program: str | None = None,
        without: Path | None = None,
    ) -> None:
        log = (self.folder / f"{name}.out").open("ab")
        program = shutil.which(program or name, path=self.environment["PATH"])
        assert program is not None
        hidden = self._hidden(without) if without is not None else []
        with log:
            self.processes[name] = subprocess.Popen(
                [*hidden, program, *options],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _hidden(self, path: Path) -> list[str]:
        """Return what starts a command for which a file or folder does not exist."""
        whiteout, around = self.folder / "whiteout" / path.name, path.parent
        whiteout.parent.mkdir(exist_ok=True)
        os.mknod(whiteout, stat.S_IFCHR, 0)  # as an overlay marks what is deleted
        layers = f"lowerdir={whiteout.parent}:{around}"
        mount = f'mount -t overlay none -o {layers} {around} && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, "sh"]

    def _all_idle(self) -> bool:
        states = self.said("sinfo", "--noheader", "--Node", "--format=%T").split()
        return states == ["idle"] * len(self.nodes)


def _environ(process: psutil.Process) -> dict[str, str]:
    return process.info["environ"] or {}


def _steps(job: psutil.Process) -> list[psutil.Process]:
    """Return the slurmstepd that a process runs under; none where it has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [x for x in job.parents() if x.name() == "slurmstepd"]
    return []


def free_ports(count: int) -> list[int]:
    """Return ports of which all but the first two follow each other."""
    for start in range(17000 + os.getpid() % 2000, 30000, count):
        try:
            for port in range(start, start + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            continue
        return list(range(start, start + count))
    raise OSError("no free ports")


def _wait(ready: object, name: str) -> None:
    assert callable(ready)
    given_up = time.monotonic() + READY_S
    while not ready():
        if time.monotonic() > given_up:
            raise TimeoutError(f"Slurm did not start: {name} did not answer.")
        time.sleep(0.1)


if __name__ == "__main__":
    with SlurmCluster(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3) as cluster:
        print(f"export SLURM_CONF={cluster.folder}/slurm.conf", getpass.getuser(), flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            pass
