"""Whether a process gives way to ours: then it only takes what nobody else wants.

- An idle cgroup (`cpu.idle` is 1, of version 1 or 2) gives way to everybody outside it.
- SCHED_IDLE and nice 19 give way within one scheduling group. Autogroup makes a group of each
  session, and groups share alike: `chrt -i 0` in another terminal then takes half of a CPU.
"""

from enum import Enum
from pathlib import Path

from torchdoctor.machine.process_table import PROC, ProcessRow

CGROUPS = Path("/sys/fs/cgroup")
_SCHED_IDLE = 5
_NICEST = 19


class Manner(Enum):
    """How a process competes with ours."""

    COMPETES = "competes"
    YIELDS = "yields"
    UNSURE = "unsure"  # by its priority it yields, and the scheduler may not know: measure it


class Manners:
    """Tells how processes compete with process `own`."""

    def __init__(self, pid: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._own_group = self._group(pid)
        self._autogroup = _read(proc / "sys/kernel/sched_autogroup_enabled") == "1"

    def of(self, row: ProcessRow) -> Manner:
        """Return how a process competes with ours."""
        group = self._group(row.pid)
        if self._in_idle_group(group):
            return Manner.YIELDS
        if row.policy != _SCHED_IDLE and row.nice < _NICEST:
            return Manner.COMPETES
        same = group == self._own_group
        # Autogroup counts in the root group alone, which a container cannot tell from its own.
        return Manner.YIELDS if same and not self._autogroup else Manner.UNSURE

    def _group(self, pid: int) -> tuple[str, str]:
        """Return the folder of its cgroup's controller below CGROUPS, and its path there."""
        unified = ("", "/")
        for line in _read(self._proc / str(pid) / "cgroup").splitlines():
            names, _, path = line.partition(":")[2].partition(":")
            if "cpu" in names.split(","):
                return "cpu" if (self._cgroups / "cpu").is_dir() else names, path
            if not names:
                unified = ("", path)
        return unified

    def _in_idle_group(self, group: tuple[str, str]) -> bool:
        """Return True if the group, or one that it lies in and ours does not, is an idle one."""
        controller, path = group
        own_folder = Path(self._own_group[1])
        for folder in [Path(path), *Path(path).parents]:
            if group[0] == self._own_group[0] and folder in (own_folder, *own_folder.parents):
                return False  # from here on up it is ours too
            if _read(self._cgroups / controller / str(folder).lstrip("/") / "cpu.idle") == "1":
                return True
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
