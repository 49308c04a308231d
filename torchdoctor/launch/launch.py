"""Starts the user's command once: its environment, its signals, its whole process tree.

What it writes is thrown away (`sandbox.py`); what the probe writes lies in the launch's channel
folder afterwards, and what it prints in `output.txt` of the launch's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchdoctor.launch import escaped_writes, shared_memory
from torchdoctor.launch.launch_environment import child_environment, named_places
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.running_launch import (
    STOP_GRACE_S,
    Poll,
    RunningLaunch,
    WindowDone,
    end,
    exit_code,
    no_interrupts,
    until_end,
)
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.started import Command, Started
from torchdoctor.launch.workload import workload_of
from torchdoctor.machine import processes
from torchdoctor.words import Workload
from torchdoctor.words.errors import TorchdoctorError, UsageError

if TYPE_CHECKING:
    from torchdoctor.machine.sensor_columns import SensorColumns
    from torchdoctor.machine.sensors import Sensors

__all__ = [
    "LaunchResult",
    "Poll",
    "Program",
    "RunningLaunch",
    "child_environment",
    "launch",
    "workload_of",
]

TAIL_BYTES = 16_384


@dataclass(frozen=True, kw_only=True)
class Program:
    """What all launches of a run have in common.

    stdin_file: what the program reads on its standard input; None: nothing.
    compile_cache: folder that keeps what torch.compile makes, for the launches after this one;
        None: thrown away with the rest.
    """

    workload: Workload
    sandbox: Sandbox
    seed: int = 0
    stdin_file: Path | None = None
    compile_cache: Path | None = None


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

    Args:
        program: the command and where it runs.
        spec: what this launch differs by; "channel" and "redirect" of its plan are filled in here.
        folder: made if need be; gets plan.json, output.txt and channel/.
        timeout_s: seconds until it is ended; None: no limit.
        poll: called about every 80 ms; True ends the launch. Default: until the probe in every
            training process is done.
        sensors: started with the program and stopped before it is ended.

    Raises:
        UsageError: the command cannot be executed.
        TorchdoctorError: the sandbox could not be set up.
        OSError: the launch's folder cannot be written.
    """
    sandbox, cache = program.sandbox, program.compile_cache
    channel = folder / "channel"
    channel.mkdir(parents=True, exist_ok=True)
    scratch = sandbox.new_scratch()
    plan = spec.plan_content(program.seed) | {"channel": str(channel.absolute()), "redirect": None}
    if sandbox.mode == "redirect":
        kept = [str(cache.absolute())] if cache else []
        plan["redirect"] = {"scratch": str(scratch / "redirect"), "exempt": kept}
        (scratch / "redirect").mkdir()
    plan_file = (folder / "plan.json").absolute()
    plan_file.write_text(json.dumps(plan), encoding="utf-8")
    environment = child_environment(plan_file, sandbox, folder, scratch, cache, plan["seed"])
    for name, value in spec.variables.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    watch = _Watch(
        program=program,
        spec=spec,
        workload=spec.workload or program.workload,
        sandbox=sandbox,
        folder=folder,
        scratch=scratch,
        kept=[path.absolute() for path in (channel, cache) if path is not None],
        channel=channel,
        environment=environment,
    )
    with processes.adopting_orphans():
        return watch.run(timeout_s, poll or WindowDone(), sensors)


@dataclass(frozen=True, kw_only=True)
class _Watch:
    """One launch from start to clean-up; fields as in `launch`."""

    program: Program
    spec: LaunchSpec
    workload: Workload
    sandbox: Sandbox
    folder: Path
    scratch: Path
    kept: list[Path]
    channel: Path
    environment: dict[str, str]

    def run(self, timeout_s: float | None, poll: Poll, sensors: Sensors | None) -> LaunchResult:
        before = self._outside()
        oom_before = _oom_kills()
        output_file = self.folder / "output.txt"
        begin = time.monotonic()
        started = self._start(output_file)
        running = RunningLaunch(
            started=started, channel=self.channel, folder=self.folder, begin_s=begin
        )
        tree = processes.Tree(
            started.popen.pid, ("TORCHDOCTOR_PLAN", self.environment["TORCHDOCTOR_PLAN"])
        )
        ended = "interrupted"
        try:
            ended = until_end(running, tree, timeout_s, poll, sensors)
        except KeyboardInterrupt:
            pass
        finally:
            with no_interrupts():
                columns = _stopped(sensors, self.folder)
                wall_s = running.elapsed_s
                # What a program prints while it is being ended is not its own story.
                said_bytes = output_file.stat().st_size
                held = self._held(tree)
                clean = end(running, tree, grace_s=0.0 if ended == "exited" else STOP_GRACE_S)
                started.read_status()
                doubts = self._after(tree, clean, before, held)
                self.sandbox.discard(started)
        self._refuse(started)
        code = exit_code(started) if ended == "exited" else None
        return LaunchResult(
            ended=ended,
            exit_code=code,
            wall_s=wall_s,
            channel=self.channel,
            output_file=output_file,
            output_tail=_tail(output_file, None if ended == "exited" else said_bytes),
            oom_killed=ended == "exited" and _ran_out_of_memory(code, oom_before),
            escaped_writes=self._escaped(before),
            doubts=doubts,
            sensors=columns,
            began_s=begin,
        )

    def _start(self, output_file: Path) -> Started:
        with contextlib.ExitStack() as files:
            output = files.enter_context(output_file.open("wb"))
            given = self.program.stdin_file
            stdin = files.enter_context(given.open("rb")) if given else None
            command = Command(
                words=self.workload.command,
                cwd=self.workload.cwd,
                environment=self.environment,
                stdin=stdin or subprocess.DEVNULL,
                output=output,
            )
            return self.sandbox.start(
                command,
                self.scratch,
                real=self.kept,
                interest=named_places(self.workload),
                contents=self.spec.contents,
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
        if before is None:
            return []
        changed = self._snapshot().changed_since(before[0])
        return sorted({*changed, *escaped_writes.named_by_probe(self.channel)[0]})

    def _held(self, tree: processes.Tree) -> set[shared_memory.Segment]:
        if self.sandbox.mode == "overlay":
            return set()  # its /dev/shm is its own
        return shared_memory.mapped(process.pid for process in tree.now())

    def _after(
        self,
        tree: processes.Tree,
        clean: bool,
        before: tuple[escaped_writes.Snapshot, set[str]] | None,
        held: set[shared_memory.Segment],
    ) -> list[str]:
        doubts = []
        if not clean:
            doubts.append("A process of the program could not be ended.")
        programs = escaped_writes.named_by_probe(self.channel)[1]
        if programs:
            doubts.append(
                f"It started {', '.join(programs)}, and what another program writes cannot be held "
                "back by redirection."
            )
        if before is not None and self.sandbox.mode != "overlay":
            shared_memory.remove_left(before[1], tree.every_pid, held)
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


def _stopped(sensors: Sensors | None, folder: Path) -> SensorColumns | None:
    if sensors is None:
        return None
    columns = sensors.stop()
    with contextlib.suppress(OSError):
        columns.save(folder / "sensors.npz")
    return columns


def _tail(path: Path, size: int | None) -> str:
    """The end of a file, or of its first `size` bytes."""
    with path.open("rb") as file:
        end_at = file.seek(0, os.SEEK_END) if size is None else size
        start = file.seek(max(0, end_at - TAIL_BYTES))
        return file.read(end_at - start).decode(errors="replace")
