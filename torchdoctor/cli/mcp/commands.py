"""Commands of torchdoctor, each in a process of its own, that end when the server does."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.figures import clean

_LOOK_S = 0.05
_LOOK_AT_RUN_S = 0.5
_OURS = "torchdoctor: "  # begins what the command line says of an error
_LONGEST = 600  # characters of an error


class CommandError(Exception):
    """A command answered with an error: its sentence."""


class Commands:
    """Starts commands, and has them ended when the client goes away."""

    def __init__(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "torchdoctor.cli.mcp.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def start(self, words: Sequence[str], folder: str) -> "Command":
        """Start `torchdoctor` with these words."""
        command = Command([sys.executable, "-m", "torchdoctor", *words], folder)
        self.guarded(command.process.pid)
        return command

    def guarded(self, pid: int) -> None:
        """Have a process ended with the server."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(f"{pid}\n")
            self._guard.stdin.flush()

    async def answer(
        self, words: Sequence[str], named: Sequence[str], folder: str
    ) -> dict[str, Any]:
        """Return the JSON of a command that takes seconds; raise CommandError where it has none.

        `named`: what the client names, none of which is an option.
        """
        command = self.start([*words, "--format", "json", "--", *named], folder)
        try:
            await command.wait(None)
        except BaseException:  # the client cancelled it
            command.end()
            raise
        return command.answer()


class Command:
    """One process, and what it prints; no pipe can stop it where nobody reads."""

    def __init__(self, command: Sequence[str], folder: str) -> None:
        # Closed with this object: a gate that goes on prints after its call was answered.
        self._stdout, self._stderr = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
        )

    async def wait(self, most_s: float | None) -> bool:
        """Return whether it has ended within this time; None: wait until it has."""
        deadline = None if most_s is None else time.monotonic() + most_s
        while self.process.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                return False
            await anyio.sleep(_LOOK_S)
        return True

    def end(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGTERM)

    def answer(self) -> dict[str, Any]:
        """Return what it printed as JSON; raise CommandError with its own sentence."""
        with contextlib.suppress(msgspec.DecodeError):
            printed = msgspec.json.decode(_text(self._stdout))
            if isinstance(printed, dict) and "summary" in printed:
                return printed
        raise CommandError(self._error())

    def _error(self) -> str:
        lines = _text(self._stderr).decode(errors="replace").splitlines()
        sentences = [line.removeprefix(_OURS) for line in lines if line.startswith(_OURS)]
        last = [line for line in lines if line.strip()][-1:]
        unsaid = [f"It ended with exit code {self.process.returncode}."]
        return clean((sentences or last or unsaid)[-1])[:_LONGEST]


def _text(file: Any) -> bytes:
    file.seek(0)
    return bytes(file.read())


async def wait_for_run(status_file: Path, most_s: float) -> None:
    """Wait until a run has ended, but not longer; its file is read, as a process costs time."""
    deadline = time.monotonic() + most_s
    while _goes_on(status_file) and time.monotonic() < deadline:
        await anyio.sleep(_LOOK_AT_RUN_S)


def _goes_on(status_file: Path) -> bool:
    try:
        status = msgspec.json.decode(status_file.read_bytes())
        os.kill(status["pid"], 0)
    except (OSError, msgspec.DecodeError, TypeError, KeyError):
        return False  # the command says how it is
    return bool(status["state"] == "running")


def checked_folder(folder: str | None) -> str:
    """Return the folder to work in; raise UsageError where there is none."""
    path = Path(folder or ".").expanduser()
    if not path.is_dir():
        raise UsageError(f"The folder {folder} does not exist here.")
    return str(path.absolute())
