"""torchdoctor's commands, called within the test's process: a new one takes a second to start.

What depends on pipes, encodings or signals starts a process, and so does one test of each command.
`told` returns the commands that a text tells to type.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from unittest import mock

from torchdoctor.cli import front


def torchdoctor(
    *arguments: str | Path,
    cwd: Path | None = None,
    text: bool = True,
    input: bytes = b"",
    **environment: str,
) -> subprocess.CompletedProcess:
    """Return the exit code and the output of `torchdoctor` with these arguments."""
    words = [os.fspath(argument) for argument in arguments]
    code, kept, folder = 0, signal.getsignal(signal.SIGTERM), Path.cwd()
    with contextlib.ExitStack() as stack:
        stdin, stdout, stderr = (
            stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3)
        )
        stdin.buffer.write(input)
        stdin.seek(0)
        os.chdir(cwd or folder)
        stack.callback(os.chdir, folder)
        stack.callback(signal.signal, signal.SIGTERM, kept)
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": "80", **environment}))
        stack.enter_context(mock.patch.object(sys, "argv", ["torchdoctor", *words]))
        stack.enter_context(mock.patch.object(sys, "stdin", stdin))
        stack.enter_context(mock.patch.object(sys, "stdout", stdout))
        stack.enter_context(mock.patch.object(sys, "stderr", stderr))
        try:
            front.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        outputs = []
        for stream in (stdout, stderr):
            stream.flush()
            stream.buffer.seek(0)
            outputs.append(stream.buffer.read())
    return subprocess.CompletedProcess(
        words, code, *(output.decode() if text else output for output in outputs)
    )


def told(text: str) -> list[list[str]]:
    """Return the commands that a text or a page tells to type, each as its words."""
    commands = re.findall(r"(?m)(?:^ *|<code>|`|\$ |: +)(torchdoctor [a-z][^`<\n]*)", text)
    return [shlex.split(unescape(command).split(" · ")[0]) for command in commands]
