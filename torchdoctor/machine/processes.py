"""All the processes of a launch: found, told to end, and ended."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_ROOTS: set[int] = set()  # first processes of launches: side by side, two at a time
_ROUNDS = 20  # of killing, against programs that start new processes meanwhile


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt processes whose parent ended (Linux), so that no daemon can slip away.

    At the end the dead processes that became our children within it are collected.
    """
    if sys.platform != "linux":
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    children = _child_pids()
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
        # Another launch waits for its own first process itself.
        _bury(sorted(_child_pids() - children - _ROOTS))


def inner_pid(pid: int) -> int:
    """Return a process's pid as it sees it itself, inside its PID namespace.

    Raises OSError where the process is gone.
    """
    if sys.platform != "linux":
        return pid
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all of its descendants that are alive now; empty where it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


class Tree:
    """The processes of the launch that started `root`, also those that left its process tree.

    `marker`: an entry of the environment that only this launch's processes have.
    """

    def __init__(self, root: int, marker: tuple[str, str]) -> None:
        self.marker = marker
        self.every_pid: set[int] = set()  # that was ever seen
        self._known: dict[int, psutil.Process] = {}
        # Made once: a psutil.Process knows when its pid has passed on to somebody else.
        self._root: psutil.Process | None = None
        _ROOTS.add(root)
        self._before = _child_pids()
        with contextlib.suppress(psutil.Error):
            self._root = psutil.Process(root)

    def now(self) -> list[psutil.Process]:
        """Return those that descend from the root, and earlier ones that still live."""
        if self._root is not None:
            self._add([self._root])
            with contextlib.suppress(psutil.Error):
                self._add(self._root.children(recursive=True))
        self._known = {pid: p for pid, p in self._known.items() if _lives(p)}
        return list(self._known.values())

    def _add(self, processes: list[psutil.Process]) -> None:
        for process in processes:
            self._known.setdefault(process.pid, process)
            self.every_pid.add(process.pid)

    def strays(self) -> list[psutil.Process]:
        """Return processes that carry the marker, wherever they hang now: all are looked at."""
        name, value = self.marker
        strays = self._adopted()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(name) == value:
                    strays.append(process)
        return strays

    def _adopted(self) -> list[psutil.Process]:
        """Return orphans that became our children, without the marker where they cleared it.

        Told from processes that somebody else in this program started by their own session.
        """
        orphans = []
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error, OSError, AttributeError):
                known = process.pid in self._before or process.pid in _ROOTS
                if not known and os.getsid(process.pid) != os.getsid(0):
                    orphans.append(process)
        return orphans

    def end(self, grace_s: float) -> bool:
        """End them all: SIGTERM to the root, then SIGKILL to every one. True: none is left."""
        root = self._root
        if root is not None and grace_s > 0:
            self.now()
            with contextlib.suppress(psutil.Error):
                root.terminate()
            wait_until(lambda: not _lives(root), grace_s)
        left: list[psutil.Process] = []
        for _ in range(_ROUNDS):
            self._add(self.strays())
            left = self.now()
            if not left:
                return True
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            _bury([process.pid for process in left])
            wait_until(lambda: not any(map(_lives, left)), 0.5)  # noqa: B023 - called at once
        return not any(map(_lives, left))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _bury(pids: list[int]) -> None:
    """Collect those that became our children by being orphaned."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


def _child_pids() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


def wait_until(done: Callable[[], bool], seconds: float, interval_s: float = 0.02) -> bool:
    """Return whether `done()` became true within that time."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_s)
    return True


def kill_quietly(pid: int) -> None:
    """Send SIGKILL, whether or not it still lives."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
