"""A command that was started, and what its entry program says about it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ENTRY = Path(__file__).with_name("sandbox_entry.py")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command and its surroundings: folder, environment, input and output."""

    words: list[str]
    cwd: str
    environment: Mapping[str, str]
    output: IO[bytes] | int
    stdin: IO[bytes] | int = subprocess.DEVNULL
    inherited: tuple[int, ...] = ()  # file descriptors besides these

    def surroundings(self) -> dict[str, Any]:
        """Return the arguments of `subprocess.Popen` for them."""
        return {
            "cwd": self.cwd,
            "env": dict(self.environment),
            "stdin": self.stdin,
            "stdout": self.output,
            "stderr": subprocess.STDOUT,
            "start_new_session": True,
        }


@dataclass(kw_only=True)
class Started:
    """A command that was started: its process and what its entry program says."""

    popen: subprocess.Popen[bytes]
    status_fd: int | None
    folder: Path
    init_pid: int | None = None  # PID 1 of its namespace, seen from outside: ends everything
    program_pid: int | None = None  # as the program sees it
    exit_code: int | None = None  # negative for a signal
    failure: str | None = None
    exec_errno: int | None = None
    limits: list[str] = field(default_factory=list)
    _unread: bytes = b""

    def read_status(self) -> None:
        """Take in what the entry program has said since the last call; never waits."""
        while self.status_fd is not None:
            try:
                data = os.read(self.status_fd, 65536)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "init":
            self.init_pid = event["pid"]
        elif kind == "started":
            self.program_pid = event["program"]
        elif kind == "exit":
            self.exit_code = os.waitstatus_to_exitcode(event["status"])
        elif kind == "limited":
            self.limits.append(f"{event['path']}: {event['reason']}")
        else:
            self.failure = event["reason"]
            self.exec_errno = event["errno"] if kind == "exec-failed" else None

    def wait_s(self, seconds: float) -> bool:
        """Return whether it ended within that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        self.read_status()
        return self.popen.returncode is not None

    def code(self) -> int | None:
        """Return the program's exit code, negative for a signal, once it has ended."""
        # Without a PID namespace the entry became the program, whose exit code nobody else tells.
        return self.popen.returncode if self.exit_code is None else self.exit_code

    def close(self) -> None:
        """Stop listening."""
        if self.status_fd is not None:
            os.close(self.status_fd)
            self.status_fd = None


def start_directly(command: Command, folder: Path) -> Started:
    """Start a command where there is no entry program: not on Linux."""
    popen = subprocess.Popen(command.words, **command.surroundings())
    return Started(popen=popen, status_fd=None, folder=folder, program_pid=popen.pid)


def start_entry(settings: dict[str, Any], command: Command, folder: Path) -> Started:
    """Start sandbox_entry.py with these settings; it becomes, or starts, the user's command."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(reader, False)
        path = folder / "settings.json"
        path.write_text(json.dumps(settings | {"status_fd": writer}), encoding="utf-8")
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(ENTRY), str(path)],
            pass_fds=(writer, *command.inherited),
            **command.surroundings(),
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return Started(popen=popen, status_fd=reader, folder=folder)
