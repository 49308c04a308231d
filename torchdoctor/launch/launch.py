"""Starts the user's command once and watches it: environment, signals, process tree, its end.

What it writes is thrown away; the probe's channel and what it prints lie in the launch's folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from torchdoctor.launch import escaped_writes, layer_limits, shared_memory
from torchdoctor.launch.held_up import may_be_held_up
from torchdoctor.launch.kept_output import KeptOutput
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.launch.run_folder import RUNS
from torchdoctor.launch.sandbox import TEMPORARY, Command, Sandbox, Started
from torchdoctor.machine import processes
from torchdoctor.schema import Evidence, Workload, fact, secret_values
from torchdoctor.schema.errors import TorchdoctorError, UsageError

if TYPE_CHECKING:
    from torchdoctor.machine.sensor_columns import SensorColumns
    from torchdoctor.machine.sensors import Sensors

BEGUN = ".begun"  # in a channel; a program that removes its own folder removes it from there
POLL_INTERVAL_S = 0.08
END_WITHIN_S = 30.0
LAST_WAIT_S = 3.0  # for other training processes, once the first one is done
_LEAST_FREE_BYTES = 4096
_PATIENCE_S = 120.0  # until a warm image is there
TAIL_BYTES = 16_384
PROBE = Path(__file__).resolve().parent.parent / "probe"
# Variables that each tracker reads itself; where the user has switched one off, that stays.
_MODES = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WEBHOOK_URL")  # places to log to
_KEPT = ("offline", "disabled", "dryrun", "debug", "read-only")


@dataclass(kw_only=True)
class RunningLaunch:
    """A launch while it runs, as `poll` sees it."""

    started: Started
    channel: Path
    folder: Path
    begin_s: float  # time.monotonic()
    output: KeptOutput | None = None
    layers: Path | None = None  # where what it writes lies; None: in the user's files
    least_room: layer_limits.Room | None = None  # there, since the start
    _root: int | None = None

    def look_at_room(self) -> None:
        """Note how full its layers are: who could not write a file in whole often removes it."""
        if self.layers is not None:
            room = layer_limits.room(self.layers)
            if self.least_room is None or room.free_bytes < self.least_room.free_bytes:
                self.least_room = room

    @property
    def elapsed_s(self) -> float:
        """Return seconds since the command was started."""
        return time.monotonic() - self.begin_s

    @property
    def root_pid(self) -> int | None:
        """Return the program's first process as seen from outside; None while it starts."""
        self.started.read_status()
        init = self.started.init_pid
        program = self.started.program_pid
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

    Raise OSError if the channel's disk is full: its window's end would never be seen; UsageError if
    what the program writes lies there, too.
    """
    popen = running.started.popen
    waiting = sensors
    look_at_s = disk_at_s = 0.0
    while popen.poll() is None:
        running.started.read_status()
        if timeout_s is not None and running.elapsed_s > timeout_s:
            return "timed-out"
        if waiting is not None and running.root_pid is not None:
            waiting.start(running.root_pid)
            waiting = None
        running.look_at_room()
        if running.output is not None:
            running.output.bound()
        if poll(running):
            return "stopped" if popen.poll() is None else "exited"
        if running.elapsed_s > disk_at_s:
            _check_disk(running.channel, running.layers)
            disk_at_s = running.elapsed_s + 1.0
        if running.started.init_pid is None and running.elapsed_s > look_at_s:
            # Without a PID namespace, who leaves the tree later must have been seen in it.
            tree.now()
            look_at_s = running.elapsed_s + 0.5
        time.sleep(POLL_INTERVAL_S)
    return "exited"


def _check_disk(channel: Path, layers: Path | None) -> None:
    """Raise an error for a full disk: the probe never fails for it, so nobody else would say it."""
    disk = os.statvfs(channel)
    # A file system that reports no size at all (some of FUSE) says nothing of its room.
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
        if layers is not None and layers.stat().st_dev == channel.stat().st_dev:
            raise UsageError(layer_limits.said_of_shared_disk(layers))
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
        if signal.getsignal(number) != signal.SIG_IGN  # as under nohup, and for what it starts
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
        if not (done := set(_files_by_pid(running.channel, "done"))):
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


@dataclass(frozen=True, kw_only=True)
class WarmImage:
    """A process that forks launches (see `probe/warm_image.py`)."""

    sandbox: Sandbox
    started: Started
    link: socket.socket

    def ready(self, most_s: float) -> WarmImage | None:
        """Wait until it can fork launches; None: it cannot, and has ended."""
        self.link.settimeout(max(min(most_s, _PATIENCE_S), 0.1))
        with contextlib.suppress(OSError):
            if self.link.recv(16):
                self.link.setblocking(True)  # also of what launches inherit
                return self
        self.close()
        return None

    @property
    def place(self) -> tuple[int, str] | None:
        """Return its socket and user namespace for a launch; None: it has ended."""
        pid = self.started.popen.poll() is None and self.started.popen.pid
        return (self.link.fileno(), f"/proc/{pid}/ns/user") if pid else None

    def close(self) -> None:
        """End it; what was forked goes on."""
        self.link.close()
        self.started.popen.kill()
        self.started.popen.wait()
        self.sandbox.discard(self.started)


@dataclass(frozen=True, kw_only=True)
class Program:
    """What all launches of a run have in common."""

    workload: Workload
    sandbox: Sandbox
    seed: int = 0
    stdin_file: Path | None = None  # what the program reads on its standard input
    compile_cache: Path | None = None  # keeps what torch.compile makes; None: thrown away
    image: WarmImage | None = None  # forks launches that differ by their plan alone
    run_folder: Path | None = None  # of ours: what changes there no program changed


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How one launch ended."""

    ended: str  # "exited" (by itself), "stopped" (by `poll`), "timed-out", "interrupted" (Ctrl-C)
    exit_code: int | None  # negative for a signal; None where it did not end by itself
    wall_s: float
    channel: Path
    output_tail: str
    # The user's files, changed all the same.
    escaped_writes: list[str] = field(default_factory=list)
    sandbox: str = "overlay"  # its mode
    full_layer: layer_limits.Room | None = None  # that the program found no space left in
    doubts: list[Evidence] = field(default_factory=list)  # what could not be ended
    sensors: SensorColumns | None = None
    began_s: float | None = None  # time.monotonic(), which on Linux is the probe's clock too


def launch(
    program: Program,
    spec: LaunchSpec,
    folder: Path,
    *,
    timeout_s: float | None = None,
    poll: Poll | None = None,
    sensors: Sensors | None = None,
) -> LaunchResult:
    """Start the command, watch it, end it, throw away what it wrote.

    `folder` gets plan.json, output.txt and channel/. It is ended after `timeout_s`, and where
    `poll`, called about every 80 ms, says True (by default: each training process's probe is done).
    Raise UsageError if the command cannot be executed, TorchdoctorError if the sandbox could not be
    set up, OSError if the launch's folder cannot be written.
    """
    cache = program.compile_cache
    channel = folder / "channel"
    for needed in filter(None, (channel, cache)):  # another run may have removed the cache
        needed.mkdir(parents=True, exist_ok=True)
    (channel / BEGUN).touch()
    scratch = program.sandbox.new_scratch()
    # In an overlay the launch's own folder is thrown away as everything is.
    away = folder.absolute() if program.sandbox.mode == "overlay" else scratch
    plan = spec.plan_content(program.seed) | {"channel": str(channel.absolute())}
    plan["trackers"] = str(away / "trackers")
    if program.sandbox.mode == "landlock":
        kept = [str(cache.absolute())] if cache else []
        kept += [str(scratch / TEMPORARY), str((folder / "output.txt").absolute())]
        plan["redirect"] = {"scratch": str(scratch / "redirect"), "exempt": kept}
        (scratch / "redirect").mkdir()
    plan_file = (folder / "plan.json").absolute()
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    environment = child_environment(plan_file, away / "trackers", cache, plan["seed"])
    if program.sandbox.mode == "landlock":
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    changed = {**environment, **spec.variables}
    watch = _Watch(
        program=program,
        spec=spec,
        workload=spec.workload or program.workload,
        folder=folder,
        scratch=scratch,
        environment={name: value for name, value in changed.items() if value is not None},
        image=program.image.place if program.image else None,
    )
    return watch.run(timeout_s, poll or WindowDone(), sensors)


@dataclass(frozen=True, kw_only=True)
class _Watch:
    """One launch from start to clean-up; fields as in `launch`."""

    program: Program
    spec: LaunchSpec
    workload: Workload
    folder: Path
    scratch: Path
    environment: dict[str, str]
    image: tuple[int, str] | None = None

    def run(self, timeout_s: float | None, poll: Poll, sensors: Sensors | None) -> LaunchResult:
        # An overlay's files and its /dev/shm are its own.
        sandbox = self.program.sandbox
        open_to_writes = sandbox.mode != "overlay"
        files = self._snapshot() if open_to_writes else None
        segments = shared_memory.segments()
        output_file, channel = self.folder / "output.txt", self.folder / "channel"
        output, hidden = KeptOutput(output_file), secret_values.values(self.workload.command)
        begin = time.monotonic()
        ended, columns, plan = "interrupted", None, "TORCHDOCTOR_PLAN"
        with contextlib.ExitStack() as uninterrupted:
            # Within the start of a process Ctrl-C would leave it to itself.
            uninterrupted.enter_context(no_interrupts())
            started = self.start(output_file)
            running = RunningLaunch(
                started=started,
                channel=channel,
                folder=self.folder,
                begin_s=begin,
                output=output,
                layers=sandbox.store.folder.parent if sandbox.mode != "none" else None,
            )
            tree = processes.Tree(started.popen.pid, (plan, self.environment[plan]))
            try:
                uninterrupted.close()  # what came is heeded here
                ended = until_end(running, tree, timeout_s, poll, sensors)
            except KeyboardInterrupt:
                pass
            finally:
                with no_interrupts():
                    columns = _stopped(sensors, self.folder)
                    wall_s = running.elapsed_s
                    # What a program prints while it is being ended is not its own story.
                    said_bytes = output_file.stat().st_size
                    pids = [process.pid for process in tree.now()] if open_to_writes else []
                    held = shared_memory.mapped(pids)
                    clean = end(running, tree)
                    started.read_status()
                    if open_to_writes:
                        shared_memory.remove_left(segments, tree.every_pid, held)
                    running.look_at_room()
                    sandbox.discard(started)
        self._refuse(started)
        code = started.code() if ended == "exited" else None
        tail = _tail(output_file, None if ended == "exited" else said_bytes)
        output.close(hidden)
        return LaunchResult(
            ended=ended,
            exit_code=code,
            wall_s=wall_s,
            channel=channel,
            output_tail=secret_values.without(tail, hidden),
            escaped_writes=self._snapshot().changed_since(files) if files is not None else [],
            sandbox=sandbox.mode,
            full_layer=layer_limits.full_layer(tail, [running.least_room, started.memory]),
            doubts=[] if clean else [fact("process-left-running")],
            sensors=columns,
            began_s=begin,
        )

    def start(self, output_file: Path, inherited: tuple[int, ...] = ()) -> Started:
        kept = (self.folder / "channel", self.program.compile_cache)
        with contextlib.ExitStack() as files:
            given = self.program.stdin_file
            command = Command(
                words=self.workload.command,
                cwd=self.workload.cwd,
                environment=self.environment,
                stdin=files.enter_context(given.open("rb")) if given else subprocess.DEVNULL,
                output=files.enter_context(output_file.open("wb")),
                inherited=inherited or (self.image or ())[:1],
            )
            return self.program.sandbox.start(
                command,
                self.scratch,
                real=[path.absolute() for path in kept if path is not None],
                interest=named_places(self.workload),
                contents=self.spec.contents,
                image=self.image,
            )

    def _snapshot(self) -> escaped_writes.Snapshot:
        folders = [self.workload.cwd]
        if self.workload.script:
            folders.append(str(Path(self.workload.script).parent))
        ours = filter(None, (self.folder, self.program.run_folder))
        runs = Path(self.workload.cwd, RUNS)  # another run may go on beside this one
        return escaped_writes.snapshot(folders, skip=map(str, [*ours, runs]))

    def _refuse(self, started: Started) -> None:
        if started.exec_errno is not None:
            raise UsageError(
                f"The command '{self.workload.command[0]}' cannot be started: {started.failure}."
            )
        if started.failure is not None:
            raise TorchdoctorError(
                f"The sandbox for the program could not be set up: {started.failure}. "
                "Try again, or run with --no-sandbox."
            )


def start_image(
    program: Program, folder: Path, spec: LaunchSpec = UNTOUCHED, most_s: float = _PATIENCE_S
) -> WarmImage | None:
    """Return a warm image of a script that runs in namespaces; None: it can have none.

    Its imports are waited for so long at most.
    """
    workload = program.workload
    sandbox = program.sandbox
    plain = [workload.script] == [str(Path(workload.cwd, word)) for word in workload.command[1:2]]
    in_namespaces = sandbox.mode == "overlay" and sandbox.pidns
    if not plain or workload.command[0] != workload.python or not in_namespaces:
        return None
    if workload.script is None or not may_be_held_up(Path(workload.script)):
        return None
    # In our PID namespace: from another one it could not enter a launch's.
    outside = replace(program, sandbox=replace(sandbox, pidns=False))
    (folder / "channel").mkdir(parents=True)
    places = folder / "plan.json", folder / "trackers", program.compile_cache
    watch = _Watch(
        program=outside,
        spec=spec,
        workload=workload,
        folder=folder,
        scratch=sandbox.new_scratch(),
        environment=child_environment(*places, program.seed),
    )
    plan = {"script": workload.script, "channel": str(folder / "channel")}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        (folder / "plan.json").write_text(json.dumps(plan | {"image": theirs.fileno()}))
        started = watch.start(folder / "output.txt", (theirs.fileno(),))
    return WarmImage(sandbox=outside.sandbox, started=started, link=ours).ready(most_s)


def _stopped(sensors: Sensors | None, folder: Path) -> SensorColumns | None:
    if sensors is None:
        return None
    columns = sensors.stop()
    with contextlib.suppress(OSError):
        columns.save(folder / "sensors.npz")
    return columns


def _tail(path: Path, size: int | None) -> str:
    with path.open("rb") as file:
        end_at = file.seek(0, os.SEEK_END) if size is None else size
        start = file.seek(max(0, end_at - TAIL_BYTES))
        return file.read(end_at - start).decode(errors="replace")


def child_environment(
    plan_file: Path, trackers: Path, compile_cache: Path | None = None, seed: int | None = None
) -> dict[str, str]:
    """Return the user's environment with what a launch needs, and no other change.

    Trackers are offline. Strings are hashed by one seed: a set has the same order in every launch.
    """
    user = dict(os.environ)
    user["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROBE), user.get("PYTHONPATH")]))
    user["TORCHDOCTOR_PLAN"] = str(plan_file)
    # A launch that is thrown away must not appear in anybody's project.
    user |= {name: mode for name, mode in _MODES.items() if user.get(name) not in _KEPT}
    user |= {"COMET_OFFLINE_DIRECTORY": str(trackers / "comet"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    user |= {"TRACKIO_DIR": str(trackers / "trackio")}
    for name in _REMOTE:
        user.pop(name, None)
    mlruns = (trackers / "mlruns").absolute().as_uri()
    user |= {"MLFLOW_TRACKING_URI": mlruns, "MLFLOW_REGISTRY_URI": mlruns}
    if compile_cache is not None:
        user.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compile_cache.absolute()))
        user.setdefault("TRITON_CACHE_DIR", str(compile_cache.absolute() / "triton"))
    if seed is not None:
        user.setdefault("PYTHONHASHSEED", str(seed % 2**32))
    return user


def named_places(workload: Workload) -> list[str]:
    """Return folders that the command line names: where the program may want to write."""
    folders = {str(Path(workload.script).parent)} if workload.script else set()
    for argument in workload.command[1:]:
        text = argument.partition("=")[2] or argument
        with contextlib.suppress(OSError, ValueError):
            path = Path(workload.cwd, text)
            folder = path if path.is_dir() else path.parent
            if folder.is_dir() and folder != folder.parent:
                folders.add(str(folder))
    return sorted(folders)
