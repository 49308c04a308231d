"""All processes of this machine as the kernel lists them (Linux): who they are, what they took."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq; guest time is part of user time


@dataclass(frozen=True, kw_only=True)
class ProcessRow:
    """A process at one moment. `key` stays its own: a pid passes on to others."""

    key: tuple[int, int]  # pid, and when it started
    parent: int
    session: int
    nice: int
    policy: int  # of scheduling: 0 normal, 3 batch, 5 idle
    cpu_s: float
    children_s: float  # of its children that it has waited for

    @property
    def pid(self) -> int:
        """Return its number."""
        return self.key[0]


def rows(proc: Path = PROC) -> dict[int, ProcessRow]:
    """Return all processes that can be seen, by pid."""
    table = {}
    for folder in proc.iterdir():
        if folder.name.isdigit() and (row := _row(folder)) is not None:
            table[row.pid] = row
    return table


def _row(folder: Path) -> ProcessRow | None:
    try:
        # Its name, in parentheses, may hold any character.
        words = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        user, system, of_children, system_of_children = (
            int(word) * _TICK_S for word in words[11:15]
        )
        return ProcessRow(
            key=(int(folder.name), int(words[19])),
            parent=int(words[1]),
            session=int(words[3]),
            nice=int(words[16]),
            policy=int(words[38]),
            cpu_s=user + system,
            children_s=of_children + system_of_children,
        )
    except (OSError, ValueError, IndexError):
        return None  # it has ended


def descendants(table: dict[int, ProcessRow], root: int) -> set[int]:
    """Return the pids of a process and of all that descend from it."""
    children: dict[int, list[int]] = {}
    for row in table.values():
        children.setdefault(row.parent, []).append(row.pid)
    pids = set[int]()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in table and pid not in pids:
            pids.add(pid)
            waiting += children.get(pid, [])
    return pids


def busy_s(cpus: Iterable[int], proc: Path = PROC) -> float:
    """Return the seconds that these CPUs were busy since boot; raise OSError where none tells."""
    wanted = {f"cpu{number}" for number in cpus}
    total = 0.0
    for line in (proc / "stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in wanted:
            total += sum(int(ticks[place]) for place in _BUSY if place < len(ticks)) * _TICK_S
    return total


def queued_s(pid: int, proc: Path = PROC) -> dict[tuple[int, int], float]:
    """Return how long each thread of a process was ready to run and had no CPU."""
    waits = {}
    with contextlib.suppress(OSError):
        for task in (proc / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                waits[pid, int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return waits


def has_variable(pid: int, start: bytes, proc: Path = PROC) -> bool:
    """Return True if a variable of a process's environment, NAME=VALUE, begins like this."""
    try:
        environment = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return False  # of another user, or a kernel's thread
    return any(entry.startswith(start) for entry in environment.split(b"\0"))
