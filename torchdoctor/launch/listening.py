"""Whether a program waits for requests: a port that it listens on, and how much it computes."""

import contextlib
from pathlib import Path

import psutil

from torchdoctor.machine import processes

_LISTENS = "0A"  # the state of a socket, in /proc/net/tcp
_LEAST_S = 8.0  # of waiting, from where on a program that listens is one that only serves
_IDLE_CPUS = 0.05
# They listen for the processes that they started, which train on other nodes and in no tree here.
_STARTERS = frozenset(("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"))


class ServerWatch:
    """Looks now and then whether a process tree listens, and does nothing else."""

    def __init__(self) -> None:
        self.port: int | None = None  # that it listens on, of the last look
        self._since_s: float | None = None  # since when it listens and idles
        self._computed_s = 0.0  # of CPU time until then

    def only_waits(self, pid: int, now_s: float) -> bool:
        """Return whether a process and its children have listened and idled for long enough."""
        tree = processes.tree(pid)
        serving = [process.pid for process in tree if not _is_starter(process)]
        self.port = next(filter(None, map(listening_port, serving)), None)
        computed_s = sum(map(_cpu_s, tree))
        waited_s = now_s - self._since_s if self._since_s is not None else 0.0
        is_busy = computed_s - self._computed_s > _IDLE_CPUS * max(waited_s, 1.0)
        if self.port is None or self._since_s is None or is_busy:
            self._since_s = now_s if self.port else None
            self._computed_s = computed_s
            return False
        return waited_s >= _LEAST_S


def _is_starter(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() in _STARTERS
    return False


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def listening_port(pid: int) -> int | None:
    """Return a TCP port that a process listens on, in whatever network it lives; None: none."""
    folder = Path(f"/proc/{pid}")
    try:
        opened = {str(link.readlink()) for link in (folder / "fd").iterdir() if link.is_symlink()}
        tables = [(folder / "net" / name).read_text() for name in ("tcp", "tcp6")]
    except OSError:  # it is gone, or the system has no such files
        return None
    for line in "\n".join(tables).splitlines():
        cells = line.split()
        if len(cells) > 9 and cells[3] == _LISTENS and f"socket:[{cells[9]}]" in opened:
            return int(cells[1].rpartition(":")[2], 16)
    return None
