"""Nodes that are reached by a command, such as srun: tasks and results are files of a folder.

The folder is one that the nodes share. A task ends with its command; a result that is not there
then was lost.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchdoctor.clusters.worker import SUFFIX
from torchdoctor.schema import Evidence, fact, message
from torchdoctor.schema.record_files import write_atomically

_WORKER = [sys.executable, "-m", "torchdoctor.clusters.worker"]
_VISIBLE_S = 5.0  # that a file of another machine may need to be seen
_LEAST_FREE_BYTES = 4096
_END_S = 40.0  # for a node to end its launches and its worker


@dataclass(kw_only=True)
class CommandNode:
    """A node whose worker is started by `prefix` and the worker's own command."""

    name: str
    prefix: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    _begun: int = field(default=0, init=False)

    def begin(self, data: bytes) -> RunningCommand:
        """Write the task and start the command; raise UsageError or OSError."""
        self._begun += 1
        file = self.folder / f"{self.name}-{self._begun}.task"
        write_atomically(file, data)
        with file.with_suffix(".log").open("wb") as log:
            popen = subprocess.Popen(
                [*self.prefix, *_WORKER, str(file)],
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C of the terminal is for us alone
            )
        return RunningCommand(popen, file)


class RunningCommand:
    """A command that measures a pair."""

    def __init__(self, popen: subprocess.Popen[bytes], file: Path) -> None:
        self._popen = popen
        self._file = file

    def result(self) -> bytes | Evidence | None:
        """Return the result, or why there is none; None: the command has not ended."""
        code = self._popen.poll()
        if code is None:
            return None
        until_s = time.monotonic() + (_VISIBLE_S if code == 0 else 0.0)
        while True:
            with contextlib.suppress(OSError):
                list(self._file.parent.iterdir())  # a network file system looks again
                data = Path(f"{self._file}{SUFFIX}").read_bytes()
                self._remove()
                return data
            if time.monotonic() > until_s:
                return self._why_lost(code)
            time.sleep(0.1)

    def cancel(self) -> None:
        """End the command, whose end is that of its worker, and forget the task."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_END_S)
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        self._remove()

    def _why_lost(self, code: int) -> Evidence:
        full = shutil.disk_usage(self._file.parent).free < _LEAST_FREE_BYTES
        self._file.unlink(missing_ok=True)  # the log stays
        if full:
            return fact("no-space-for-results", folder=str(self._file.parent))
        lines: list[str] = []
        with contextlib.suppress(OSError):
            text = self._file.with_suffix(".log").read_text(errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
        if not lines:
            return fact("node-command-ended", exit_code=code)
        return message(f"{lines[-1].rstrip('.')}.")

    def _remove(self) -> None:
        for path in (self._file, Path(f"{self._file}{SUFFIX}"), self._file.with_suffix(".log")):
            path.unlink(missing_ok=True)
