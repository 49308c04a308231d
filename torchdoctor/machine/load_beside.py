"""Processors that other programs held while something of ours was measured.

Ours are this process, all that descends from it, and what left its tree with our launches' own
variable in its environment. What gives way to ours counts as what it takes from us.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchdoctor.machine.environment import affinity
from torchdoctor.machine.process_table import (
    PROC,
    ProcessRow,
    busy_s,
    descendants,
    has_variable,
    queued_s,
    rows,
)
from torchdoctor.machine.yielding import CGROUPS, Manner, Manners

SHORTEST_S = 0.5  # a shorter time tells nothing: the kernel counts in hundredths of a second
_LOOK_EVERY_S = 0.5
_COST_SHARE = 0.005  # of one CPU, that looking may take
_PLAN = b"TORCHDOCTOR_PLAN="  # the variable that each launch has


@dataclass
class Held:
    """What others held while something was measured, in CPUs on average; None: not known."""

    seconds: float = 0.0
    held: float | None = None  # of the CPUs that this process may use
    yielded: float | None = None  # more, which took nothing from ours


@dataclass
class _Kept:
    """What is known of a process that is not in our tree, or no longer."""

    first: float  # CPU seconds as it was seen first, 0 where it started since
    last: float
    manner: Manner | None  # None: it is ours


@dataclass
class _Watch:
    """Looks at all processes from its making until `stop`."""

    proc: Path
    own: int
    manners: Manners
    plan: bytes
    cpus: list[int]
    _kept: dict[tuple[int, int], _Kept] = field(default_factory=dict)
    # CPU seconds of each process that was ever in our tree, as it was seen first and last.
    _in_tree: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    _waits: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ending = threading.Event()
        self._began = time.monotonic()
        self._busy_s, self._children_s = busy_s(self.cpus, self.proc), self._look(first=True)
        self._thread = threading.Thread(target=self._run, name="load beside", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause_s = _LOOK_EVERY_S
        while not self._ending.wait(pause_s):
            began = time.thread_time()
            with contextlib.suppress(OSError):
                self._look()
            pause_s = max(_LOOK_EVERY_S, (time.thread_time() - began) / _COST_SHARE)

    def _look(self, first: bool = False) -> float:
        """Note what every process took so far; return what ended children of our tree did."""
        table = rows(self.proc)
        tree = descendants(table, self.own)
        for pid, row in table.items():
            if pid in tree:
                self._in_tree.setdefault(row.key, [row.cpu_s if first else 0.0, 0.0])[1] = row.cpu_s
                for thread, waited_s in queued_s(pid, self.proc).items():
                    self._waits.setdefault(thread, [waited_s if first else 0.0, 0.0])[1] = waited_s
                self._kept.pop(row.key, None)
            elif row.key in self._kept:
                self._kept[row.key].last = row.cpu_s
            else:
                self._kept[row.key] = self._new(row, first)
        self._alive = {table[pid].key for pid in tree}
        return sum(table[pid].children_s for pid in tree)

    def _ours_s(self, children_s: float) -> float:
        """Return what our tree took; `children_s`: since the beginning, of those waited for.

        A launch that is killed with its namespace is waited for by nobody, and its time is in no
        parent's: what was seen of it last counts.
        """
        took = {key: last - first for key, (first, last) in self._in_tree.items()}
        alive_s = sum(seconds for key, seconds in took.items() if key in self._alive)
        ended_s = sum(took.values()) - alive_s
        before_s = sum(first for key, (first, _) in self._in_tree.items() if key not in self._alive)
        return alive_s + max(ended_s, children_s - before_s)

    def _new(self, row: ProcessRow, first: bool) -> _Kept:
        # What left our tree was counted there until now, and no longer is.
        ours = row.key in self._in_tree or has_variable(row.pid, self.plan, self.proc)
        manner = None if ours else self.manners.of(row)
        return _Kept(first=row.cpu_s if first else 0.0, last=row.cpu_s, manner=manner)

    def stop(self) -> Held:
        """End watching, and return what others held meanwhile."""
        self._ending.set()
        self._thread.join()
        seconds = time.monotonic() - self._began
        ours_s = self._ours_s(self._look() - self._children_s)
        others_s = busy_s(self.cpus, self.proc) - self._busy_s - ours_s
        if seconds < SHORTEST_S:
            return Held(seconds=seconds)
        others_s -= self._took(None)
        unsure_s = self._took(Manner.UNSURE)
        yields_s = self._took(Manner.YIELDS)
        waited_s = sum(max(last - first, 0.0) for first, last in self._waits.values())
        yielded_s = yields_s + max(unsure_s - waited_s, 0.0)  # it cannot have taken more than that
        yielded_s = min(yielded_s, max(others_s, 0.0))
        return Held(
            seconds=seconds,
            held=max(others_s - yielded_s, 0.0) / seconds,
            yielded=yielded_s / seconds,
        )

    def _took(self, manner: Manner | None) -> float:
        return sum(kept.last - kept.first for kept in self._kept.values() if kept.manner is manner)


class LoadBeside:
    """Measures what others hold, again and again; `folder`: of the run whose launches are ours.

    `usable`: CPUs that the program may use, by affinity and quota.
    """

    def __init__(
        self, usable: float, folder: Path, proc: Path = PROC, cgroups: Path = CGROUPS
    ) -> None:
        self.usable = usable
        self._proc, self._cgroups, self._own = proc, cgroups, os.getpid()
        self._plan = _PLAN + os.fsencode(folder.absolute())
        self._measured: list[Held] = []

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Held]:
        """Measure meanwhile; what is given is filled in at the end."""
        held = Held()
        cpus = affinity()
        try:
            manners = Manners(self._own, self._proc, self._cgroups)
            watch = _Watch(self._proc, self._own, manners, self._plan, cpus)
        except OSError:  # no Linux
            yield held
            return
        try:
            yield held
        finally:
            with contextlib.suppress(OSError):
                table = watch.stop()
                held.seconds, held.yielded = table.seconds, table.yielded
                if table.held is not None:
                    # A quota leaves CPUs to others, who take nothing from us there.
                    spare = max(len(cpus) - self.usable, 0.0)
                    held.held = max(table.held - spare, 0.0)
                self._measured.append(held)

    def on_average(self) -> float | None:
        """Return CPUs that others held on average while anything was measured; None: not known."""
        loads = [load for load in self._measured if load.held is not None]
        seconds = sum(load.seconds for load in loads)
        return (
            sum((load.held or 0.0) * load.seconds for load in loads) / seconds if seconds else None
        )
