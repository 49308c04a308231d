"""A launch while it runs, and how it is ended."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
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
STOP_GRACE_S = 0.3  # between SIGTERM and SIGKILL; nothing that the program does then is kept
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
        if self._root is None and self.started.program_pid is not None:
            self._root = self._outer_pid(self.started.program_pid)
        return self._root

    def _outer_pid(self, pid: int) -> int | None:
        if self.started.init_pid is None:
            return pid
        for process in processes.tree(self.started.init_pid):
            with contextlib.suppress(OSError):
                outer: int = process.pid
                if processes.inner_pid(outer) == pid:
                    return outer
        return None


Poll = Callable[[RunningLaunch], bool]


def until_end(
    running: RunningLaunch,
    tree: processes.Tree,
    timeout_s: float | None,
    poll: Poll,
    sensors: Sensors | None,
) -> str:
    """Wait until the program ends or is to be ended; says which.

    Raises:
        OSError: the disk of the channel is full, so that its window's end would never be seen.
    """
    popen = running.started.popen
    measuring = sensors is None
    look_at_s = disk_at_s = 0.0
    with _end_of(popen) as ended:
        while popen.poll() is None:
            running.started.read_status()
            if timeout_s is not None and running.elapsed_s > timeout_s:
                return "timed-out"
            if not measuring and sensors is not None and running.root_pid is not None:
                sensors.start(running.root_pid)
                measuring = True
            if poll(running):
                return "stopped" if popen.poll() is None else "exited"
            if running.elapsed_s > disk_at_s:
                _check_disk(running.channel)
                disk_at_s = running.elapsed_s + 1.0
            if running.started.init_pid is None and running.elapsed_s > look_at_s:
                # Without a PID namespace, who leaves the tree later must have been seen in it.
                tree.now()
                look_at_s = running.elapsed_s + 0.5
            ended(POLL_INTERVAL_S)
    return "exited"


def _check_disk(channel: Path) -> None:
    """Raise OSError for a full disk: the probe never fails for it, so nobody else would say it."""
    disk = os.statvfs(channel)
    # A file system that reports no size at all (some of FUSE) says nothing of its room.
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(channel))


@contextlib.contextmanager
def _end_of(popen: subprocess.Popen[bytes]) -> Iterator[Callable[[float], None]]:
    """Yield a function that waits that many seconds, less where the process ends."""
    descriptor = None
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(popen.pid)
    if descriptor is None:
        yield time.sleep
        return
    try:
        yield lambda seconds: (select.select([descriptor], [], [], seconds), None)[1]
    finally:
        os.close(descriptor)


def end(running: RunningLaunch, tree: processes.Tree, grace_s: float) -> bool:
    """End every process of the launch. True: none is left."""
    started = running.started
    started.read_status()
    if started.init_pid is None:
        clean = tree.end(grace_s)
        return started.wait_s(END_WITHIN_S) and clean
    root = running.root_pid if started.popen.poll() is None and grace_s > 0 else None
    if root is not None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(root)
            process.terminate()
            processes.wait_until(lambda: started.popen.poll() is not None, grace_s)
    if started.popen.poll() is None:
        # The kernel ends all other processes of the namespace before the entry's wait returns.
        processes.kill_quietly(started.init_pid)
    return started.wait_s(END_WITHIN_S)


def exit_code(started: Started) -> int | None:
    """Return the program's own, negative for a signal."""
    return started.exit_code if started.exit_code is not None else started.popen.returncode


@contextlib.contextmanager
def no_interrupts() -> Iterator[None]:
    """Heed Ctrl-C at the end only: it must not leave half of the clean-up undone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    before = {
        n: signal.signal(n, lambda number, frame: came.append(number))
        for n in numbers
        if n is not None
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came[:1]:
        signal.raise_signal(number)


class WindowDone:
    """True once every process that trains has a done file, or one has had it for some seconds."""

    def __init__(self) -> None:
        self._steps: dict[str, tuple[int, bool]] = {}  # pid -> (time of change, has stepped)
        self._first_done_s: float | None = None

    def __call__(self, running: RunningLaunch) -> bool:
        """Return whether the launch is over: see `launch`'s `poll`."""
        done, facts = _files(running.channel)
        if not done:
            return False
        if self._first_done_s is None:
            self._first_done_s = running.elapsed_s
        if running.elapsed_s - self._first_done_s > LAST_WAIT_S:
            return True
        training = {pid for pid, entry in facts.items() if self._has_stepped(pid, entry)}
        return training <= done

    def _has_stepped(self, pid: str, path: Path) -> bool:
        try:
            changed = path.stat().st_mtime_ns
            if self._steps.get(pid, (0, False))[0] != changed:
                content = json.loads(path.read_bytes())
                self._steps[pid] = (changed, content.get("first_step_s") is not None)
        except (OSError, ValueError):
            return False
        return self._steps[pid][1]


def _files(channel: Path) -> tuple[set[str], dict[str, Path]]:
    """Return pids with a done file, and the process files by pid."""
    done, facts = set(), {}
    with os.scandir(channel) as entries:
        for entry in entries:
            kind, _, rest = entry.name.partition("-")
            pid = rest.removesuffix(".json")
            if pid.isdecimal() and kind == "done":
                done.add(pid)
            elif pid.isdecimal() and kind == "process":
                facts[pid] = Path(entry.path)
    return done, facts
