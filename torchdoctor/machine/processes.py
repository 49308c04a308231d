"""All the processes of a launch: found, and ended."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

_END_WITHIN_S = 10.0


def inner_pid(pid: int) -> int:
    """Return a process's pid inside its PID namespace; raise OSError where it is gone."""
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
    """The processes of a launch, also those that left its tree; `marker`: their own variable."""

    def __init__(self, root: int, marker: tuple[str, str]) -> None:
        self.marker = marker
        self.every_pid: set[int] = set()  # that was ever seen
        self._known: dict[int, psutil.Process] = {}
        # Made once: a psutil.Process knows when its pid has passed on to somebody else.
        self._root: psutil.Process | None = None
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
        strays = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(name) == value:
                    strays.append(process)
        return strays

    def end(self) -> bool:
        """Kill them all, and those that are started meanwhile. True: none is left."""
        deadline = time.monotonic() + _END_WITHIN_S
        while True:
            self._add(self.strays())
            left = self.now()
            if not left or time.monotonic() > deadline:
                return not left
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.02)


def end_gently(processes: Sequence[psutil.Process], within_s: float) -> None:
    """Ask processes to end, and kill those with all below them that have not after that time."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=within_s)
    for process in [below for root in left for below in tree(root.pid)]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def is_alive(pid: int) -> bool:
    """Return whether a process of this number lives here."""
    try:
        return _lives(psutil.Process(pid))
    except (psutil.Error, ValueError):
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def kill_quietly(pid: int) -> None:
    """Send SIGKILL, whether or not it still lives."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
