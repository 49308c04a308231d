"""Whether a sandbox really does what it should on this machine: tried, not assumed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from torchdoctor.recording.started import Started
from torchdoctor.records import Workload

if TYPE_CHECKING:
    from torchdoctor.recording.sandbox import Sandbox

_TRIAL_TIMEOUT_S = 20.0
# Run inside: writes beside the user's files, reads back, and says who it is.
_TRIAL = """
import os, sys
for folder in sys.argv[2:]:
    path = os.path.join(folder, sys.argv[1])
    try:
        with open(path, "w") as file:
            file.write("trial")
    except OSError as error:
        sys.exit(f"{folder} cannot be written in the sandbox: {error.strerror}")
    if open(path).read() != "trial":
        sys.exit(f"{folder} does not read back what was written")
print(os.getuid(), os.getcwd(), sep="\\n")
"""


def trial(sandbox: Sandbox, workload: Workload | None) -> str | None:
    """Start a tiny program in it that writes beside the user's files. None: all is well."""
    cwd = workload.cwd if workload else str(Path.cwd())
    folders = {cwd, "/tmp"}
    if workload and workload.script:
        folders.add(str(Path(workload.script).parent))
    folders = {folder for folder in folders if os.access(folder, os.W_OK)}
    name = f".torchdoctor-trial-{os.getpid()}-{threading.get_ident()}"
    folder = sandbox.new_scratch()
    answer = folder / "answer"
    command = [sys.executable, "-I", "-S", "-c", _TRIAL, name, *sorted(folders)]
    with answer.open("w+b") as output:
        started = sandbox.start(
            command, cwd=cwd, environment=os.environ, folder=folder, real=[],
            stdin=subprocess.DEVNULL, output=output,
        )  # fmt: skip
        try:
            ended = started.wait_s(_TRIAL_TIMEOUT_S)
        finally:
            started.popen.kill()
            started.popen.wait()
        output.seek(0)
        text = output.read().decode(errors="replace").strip()
    escaped = [f for f in folders if Path(f, name).exists()]
    for place in escaped:
        Path(place, name).unlink()
    problem = _trial_problem(started, ended, escaped, text, cwd)
    if problem is None:
        sandbox.doubts += [
            f"Not writable in the sandbox: {limit}" for limit in _worth_saying(started)
        ]
    sandbox.discard(started)
    return problem


def _trial_problem(
    started: Started, ended: bool, escaped: list[str], text: str, cwd: str
) -> str | None:
    if started.failure is not None:
        return f"{started.failure}."
    if not ended:
        return "the trial program did not end."
    if escaped:
        return f"what was written to {escaped[0]} stayed there."
    if started.exit_code is None and started.popen.returncode == 0:
        started.exit_code = 0  # without a PID namespace the entry became the program
    if started.exit_code != 0:
        return (text.splitlines() or ["the trial program failed"])[-1] + "."
    if text.splitlines() != [str(os.getuid()), os.path.realpath(cwd)]:
        return "the trial program saw another user or folder."
    return None


def _worth_saying(started: Started) -> list[str]:
    """Of the folders without a layer those that the user could write to outside."""
    said = []
    for limit in started.limits:
        path = limit.partition(": ")[0]
        if os.access(path, os.W_OK):
            said.append(limit)
    return said
