"""A launch while it runs, and how it is ended."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from torchdoctor.launch.started import Started
from torchdoctor.machine import processes

if TYPE_CHECKING:
    from torchdoctor.machine.sensors import Sensors

POLL_INTERVAL_S = 0.08
END_WITHIN_S = 30.0
LAST_WAIT_S = 3.0  # for other training processes, once the first one is done
_LEAST_FREE_BYTES = 4096


@dataclass(kw_only=True)
class RunningLaunch:
    """A launch while it runs, as `poll` sees it."""

    started: Started
    channel: Path
    folder: Path
    begin_s: float  # time.monotonic()
    _root: int | None = None

    @property
    def elapsed_s(self) -> float:
        """Return seconds since the command was started."""
        return time.monotonic() - self.begin_s

    @property
    def root_pid(self) -> int | None:
        """Return the program's first process as seen from outside; None while it starts."""
        self.started.read_status()
        init, program = self.started.init_pid, self.started.program_pid
        if init is None:
            return program
        for process in processes.tree(init) if self._root is None and program is not None else ():
            with contextlib.suppress(OSError):
                if processes.inner_pid(process.pid) == program:
                    self._root = process.pid
        return self._root


Poll = Callable[[RunningLaunch], bool]


def until_end(
    running: RunningLaunch,
    tree: processes.Tree,
    timeout_s: float | None,
    poll: Poll,
    sensors: Sensors | None,
) -> str:
    """Wait until the program ends or is to be ended; says which.

    Raise OSError if the channel's disk is full: its window's end would never be seen.
    """
    popen, waiting = running.started.popen, sensors
    look_at_s = disk_at_s = 0.0
    while popen.poll() is None:
        running.started.read_status()
        if timeout_s is not None and running.elapsed_s > timeout_s:
            return "timed-out"
        if waiting is not None and running.root_pid is not None:
            waiting.start(running.root_pid)
            waiting = None
        if poll(running):
            return "stopped" if popen.poll() is None else "exited"
        if running.elapsed_s > disk_at_s:
            _check_disk(running.channel)
            disk_at_s = running.elapsed_s + 1.0
        if running.started.init_pid is None and running.elapsed_s > look_at_s:
            # Without a PID namespace, who leaves the tree later must have been seen in it.
            tree.now()
            look_at_s = running.elapsed_s + 0.5
        time.sleep(POLL_INTERVAL_S)
    return "exited"


def _check_disk(channel: Path) -> None:
    """Raise OSError for a full disk: the probe never fails for it, so nobody else would say it."""
    disk = os.statvfs(channel)
    # A file system that reports no size at all (some of FUSE) says nothing of its room.
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(channel))


def end(running: RunningLaunch, tree: processes.Tree) -> bool:
    """End every process of the launch, at once: nothing that it does now is kept. True: all are."""
    started = running.started
    started.read_status()
    for process in tree.now():
        with contextlib.suppress(psutil.Error):
            if process.name() == "srun":  # killed, it would leave its processes on other nodes
                process.terminate()
                process.wait(END_WITHIN_S)
    if started.init_pid is None:
        clean = tree.end()
        return started.wait_s(END_WITHIN_S) and clean
    if started.popen.poll() is None:
        # The kernel ends all other processes of the namespace before the entry's wait returns.
        processes.kill_quietly(started.init_pid)
    return started.wait_s(END_WITHIN_S)


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Heed Ctrl-C at the end only: it must not leave half of the clean-up undone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


class WindowDone:
    """True once every process that trains has a done file, or one has had it for some seconds."""

    def __init__(self) -> None:
        self._stepped: set[str] = set()  # pids
        self._first_done_s: float | None = None

    def __call__(self, running: RunningLaunch) -> bool:
        """Return whether the launch is over: see `launch`'s `poll`."""
        done = set(_files_by_pid(running.channel, "done"))
        if not done:
            return False
        if self._first_done_s is None:
            self._first_done_s = running.elapsed_s
        if running.elapsed_s - self._first_done_s > LAST_WAIT_S:
            return True
        for pid, path in _files_by_pid(running.channel, "process").items():
            with contextlib.suppress(OSError, ValueError):
                if json.loads(path.read_bytes()).get("first_step_s") is not None:
                    self._stepped.add(pid)
        return self._stepped <= done


def _files_by_pid(channel: Path, kind: str) -> dict[str, Path]:
    files = {path.stem.partition("-")[2]: path for path in channel.glob(f"{kind}-*")}
    return {pid: path for pid, path in files.items() if pid.isdecimal()}
