"""Starts the user's command once: its environment, its signals, its whole process tree.

What it writes is thrown away (`sandbox.py`); what the probe writes lies in the launch's channel
folder afterwards, and what it prints in `output.txt` of the launch's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from torchdoctor.errors import TorchdoctorError, UsageError
from torchdoctor.recording import escaped_writes, processes, shared_memory, trackers
from torchdoctor.recording.channel import WindowDone
from torchdoctor.recording.sandbox import Sandbox, Started
from torchdoctor.recording.workload import workload_of
from torchdoctor.records import Workload

if TYPE_CHECKING:
    from torchdoctor.recording.sensors import SensorColumns, Sensors

__all__ = ["LaunchResult", "Poll", "RunningLaunch", "child_environment", "launch", "workload_of"]

PROBE = Path(__file__).resolve().parent.parent / "probe"
POLL_INTERVAL_S = 0.08
STOP_GRACE_S = 0.3  # between SIGTERM and SIGKILL; nothing that the program does then is kept
END_WITHIN_S = 30.0
TAIL_BYTES = 16_384


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How one launch ended.

    ended: "exited" (by itself), "stopped" (by `poll`), "timed-out" or "interrupted" (Ctrl-C).
    exit_code: the program's own, negative for a signal; None where it did not end by itself.
    escaped_writes: files of the user that changed nevertheless, where no overlay holds them back.
    doubts: what could not be kept or cleaned, one sentence each.
    """

    ended: str
    exit_code: int | None
    wall_s: float
    channel: Path
    output_file: Path
    output_tail: str
    oom_killed: bool = False
    escaped_writes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    sensors: SensorColumns | None = None


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
        """Seconds since the command was started."""
        return time.monotonic() - self.begin_s

    @property
    def root_pid(self) -> int | None:
        """The program's first process as seen from outside; None while it is being started."""
        self.started.read_status()
        if self._root is None and self.started.program_pid is not None:
            self._root = self._find(self.started.program_pid)
        return self._root

    def outer_pid(self, pid: int) -> int | None:
        """For a pid as the program sees it (in file names of the probe) the one seen here."""
        return self._find(pid)

    def _find(self, pid: int) -> int | None:
        if self.started.init_pid is None:
            return pid
        for process in processes.tree(self.started.init_pid):
            with contextlib.suppress(OSError):
                if processes.inner_pid(process.pid) == pid:
                    return process.pid
        return None


Poll = Callable[[RunningLaunch], bool]


def launch(
    workload: Workload,
    plan: dict[str, Any],
    *,
    folder: Path,
    sandbox: Sandbox,
    timeout_s: float | None = None,
    poll: Poll | None = None,
    extra_env: dict[str, str] | None = None,
    stdin_file: Path | None = None,
    sensors: Sensors | None = None,
) -> LaunchResult:
    """Start the command, watch it, end it, throw away what it wrote.

    Args:
        plan: for the probe; "channel" and "redirect" are filled in here.
        folder: made if need be; gets plan.json, output.txt and channel/.
        timeout_s: seconds until it is ended; None: no limit.
        poll: called about every 80 ms; True ends the launch. Default: until the probe in every
            training process is done.
        extra_env: variables for this launch alone.
        stdin_file: what the program reads on its standard input; None: nothing.
        sensors: started with the program and stopped before it is ended.

    Raises:
        UsageError: the command cannot be executed.
        TorchdoctorError: the sandbox could not be set up.
        OSError: the launch's folder cannot be written.
    """
    channel = folder / "channel"
    channel.mkdir(parents=True, exist_ok=True)
    scratch = sandbox.new_scratch()
    plan = plan | {"channel": str(channel.absolute()), "redirect": None}
    if sandbox.mode == "redirect":
        plan["redirect"] = {"scratch": str(scratch / "redirect")}
        (scratch / "redirect").mkdir()
    plan_file = (folder / "plan.json").absolute()
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    environment = child_environment(plan_file, sandbox, folder, scratch) | (extra_env or {})
    watch = _Watch(workload=workload, sandbox=sandbox, folder=folder)
    with processes.adopting_orphans(), processes.burying_orphans():
        return watch.run(
            environment=environment,
            scratch=scratch,
            channel=channel,
            timeout_s=timeout_s,
            poll=poll or WindowDone(),
            stdin_file=stdin_file,
            sensors=sensors,
        )


def child_environment(
    plan_file: Path, sandbox: Sandbox, folder: Path, scratch: Path
) -> dict[str, str]:
    """The user's environment, the probe in front of the path, trackers offline. No other change."""
    user = dict(os.environ)
    path = user.get("PYTHONPATH")
    user["PYTHONPATH"] = f"{PROBE}{os.pathsep}{path}" if path else str(PROBE)
    user["TORCHDOCTOR_PLAN"] = str(plan_file)
    # In an overlay the launch's own folder is thrown away as everything is.
    away = folder.absolute() if sandbox.mode == "overlay" else scratch
    user |= trackers.offline(away / "trackers", user)
    if sandbox.mode == "redirect":
        user["PYTHONDONTWRITEBYTECODE"] = "1"
    return user


@dataclass(kw_only=True)
class _Watch:
    workload: Workload
    sandbox: Sandbox
    folder: Path

    def run(
        self,
        *,
        environment: dict[str, str],
        scratch: Path,
        channel: Path,
        timeout_s: float | None,
        poll: Poll,
        stdin_file: Path | None,
        sensors: Sensors | None,
    ) -> LaunchResult:
        before = self._outside()
        oom_before = _oom_kills()
        output_file = self.folder / "output.txt"
        begin = time.monotonic()
        with contextlib.ExitStack() as files:
            output = files.enter_context(output_file.open("wb"))
            stdin = files.enter_context(stdin_file.open("rb")) if stdin_file else None
            started = self.sandbox.start(
                self.workload.command,
                cwd=self.workload.cwd,
                environment=environment,
                folder=scratch,
                real=[channel.absolute()],
                stdin=stdin or subprocess.DEVNULL,
                output=output,
                interest=_named_places(self.workload),
            )
        running = RunningLaunch(started=started, channel=channel, folder=self.folder, begin_s=begin)
        tree = processes.Tree(
            started.popen.pid, ("TORCHDOCTOR_PLAN", environment["TORCHDOCTOR_PLAN"])
        )
        ended = "interrupted"
        try:
            ended = _until_end(running, tree, timeout_s, poll, sensors)
        except KeyboardInterrupt:
            pass
        finally:
            with _no_interrupts():
                columns = _stopped(sensors, self.folder)
                wall_s = running.elapsed_s
                clean = _end(running, tree, grace_s=0.0 if ended == "exited" else STOP_GRACE_S)
                started.read_status()
                doubts = self._after(started, tree, clean, before)
                self.sandbox.discard(started)
        self._refuse(started)
        exit_code = _exit_code(started) if ended == "exited" else None
        return LaunchResult(
            ended=ended,
            exit_code=exit_code,
            wall_s=wall_s,
            channel=channel,
            output_file=output_file,
            output_tail=_tail(output_file),
            oom_killed=ended == "exited" and _ran_out_of_memory(exit_code, oom_before),
            escaped_writes=self._escaped(before),
            doubts=doubts,
            sensors=columns,
        )

    def _outside(self) -> tuple[escaped_writes.Snapshot, set[str]] | None:
        if self.sandbox.mode == "overlay" and self.sandbox.pidns:
            return None
        return self._snapshot(), shared_memory.segments()

    def _snapshot(self) -> escaped_writes.Snapshot:
        if self.sandbox.mode == "overlay":
            return escaped_writes.Snapshot()
        folders = [self.workload.cwd]
        if self.workload.script:
            folders.append(str(Path(self.workload.script).parent))
        return escaped_writes.snapshot(folders, skip=[str(self.folder)])

    def _escaped(self, before: tuple[escaped_writes.Snapshot, set[str]] | None) -> list[str]:
        return [] if before is None else self._snapshot().changed_since(before[0])

    def _after(
        self,
        started: Started,
        tree: processes.Tree,
        clean: bool,
        before: tuple[escaped_writes.Snapshot, set[str]] | None,
    ) -> list[str]:
        doubts = []
        if not clean:
            doubts.append("A process of the program could not be ended.")
        if before is not None and self.sandbox.mode != "overlay":
            shared_memory.remove_left(before[1], tree.every_pid)
        return doubts

    def _refuse(self, started: Started) -> None:
        if started.failure is None:
            return
        if started.exec_errno is not None:
            raise UsageError(
                f"The command '{self.workload.command[0]}' cannot be started: {started.failure}."
            )
        raise TorchdoctorError(
            f"The sandbox for the program could not be set up: {started.failure}. "
            "Try again, or run with --no-sandbox."
        )


def _until_end(
    running: RunningLaunch,
    tree: processes.Tree,
    timeout_s: float | None,
    poll: Poll,
    sensors: Sensors | None,
) -> str:
    """Wait until the program ends or is to be ended; says which."""
    popen = running.started.popen
    measuring = sensors is None
    look_at_s = 0.0
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
            if running.started.init_pid is None and running.elapsed_s > look_at_s:
                # Without a PID namespace, who leaves the tree later must have been seen in it.
                tree.now()
                look_at_s = running.elapsed_s + 0.5
            ended(POLL_INTERVAL_S)
    return "exited"


@contextlib.contextmanager
def _end_of(popen: subprocess.Popen[bytes]) -> Iterator[Callable[[float], None]]:
    """A function that waits that many seconds, less where the process ends."""
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


def _end(running: RunningLaunch, tree: processes.Tree, grace_s: float) -> bool:
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


def _stopped(sensors: Sensors | None, folder: Path) -> SensorColumns | None:
    if sensors is None:
        return None
    columns = sensors.stop()
    with contextlib.suppress(OSError):
        columns.save(folder / "sensors.npz")
    return columns


def _exit_code(started: Started) -> int | None:
    return started.exit_code if started.exit_code is not None else started.popen.returncode


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """A second Ctrl-C must not leave half of the clean-up undone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _named_places(workload: Workload) -> list[str]:
    """Folders that the command line names: where the program may want to write."""
    found = {str(Path(workload.script).parent)} if workload.script else set()
    for argument in workload.command[1:]:
        text = argument.partition("=")[2] or argument
        with contextlib.suppress(OSError, ValueError):
            path = Path(workload.cwd, text)
            folder = path if path.is_dir() else path.parent
            if folder.is_dir() and folder != folder.parent:
                found.add(str(folder))
    return sorted(found)


def _oom_kills() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _ran_out_of_memory(exit_code: int | None, before: int | None) -> bool:
    if exit_code == 0:
        return False
    after = _oom_kills()
    if before is None or after is None:
        return exit_code in (-9, 137)
    return after > before


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read().decode(errors="replace")
