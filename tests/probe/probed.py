"""Runs a script in a real process, plainly or under the probe, and reads back what it left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked_programs
import numpy as np
from forked_programs import Process, run, start, streams_in

from torchdoctor.probe import step_log

PROBE = Path(step_log.__file__).parent


@dataclass
class Probed:
    """One finished (or stopped) process tree and its channel folder."""

    returncode: int
    stdout: str
    stderr: str
    channel: Path | None = None
    stopped_by: str | None = None  # "done": its window was complete and it was killed
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def main(self) -> dict[str, Any]:
        """Facts of the process that learned most."""
        return self.facts[self.main_pid]

    @property
    def main_pid(self) -> int:
        return max(self.facts, key=lambda pid: len(self.events.get(pid, ())))

    def count(self, code: int, pid: int | None = None) -> int:
        rows = self.events.get(self.main_pid if pid is None else pid)
        return 0 if rows is None else int((rows[:, 0] == code).sum())

    def losses(self) -> np.ndarray:
        assert self.channel is not None
        return np.fromfile(self.channel / f"losses-{self.main_pid}.bin", dtype="<f8")

    def said(self) -> list[str]:
        """All that the probe reports of its own failures."""
        assert self.channel is not None
        files = [p.read_text() for p in self.channel.glob("probe-error-*.txt")]
        return files + [e for f in self.facts.values() for e in f["probe_errors"]]


def environment(plan: Path | None = None, **changes: str) -> dict[str, str]:
    """The surroundings of a program; with a plan, those of a launch."""
    env = forked_programs.environment()
    user = changes.pop("PYTHONPATH", None)
    env.update(changes)
    if plan is not None:
        env["TORCHDOCTOR_PLAN"] = str(plan)
        env["PYTHONPATH"] = f"{PROBE}{os.pathsep}{user}" if user else str(PROBE)
    elif user:
        env["PYTHONPATH"] = user
    return env


def write_plan(folder: Path, **changes: Any) -> Path:
    """A plan file with its channel below `folder`."""
    channel = folder / "channel"
    channel.mkdir(exist_ok=True)
    plan = {
        "channel": str(channel),
        "purpose": "observe",
        "boundary": None,
        "warmup_steps": 2,
        "measure_steps": 4,
        "max_window_s": None,
        "after": "freeze",
        "fixes": [],
        "seed": None,
        "seed_offset": 0,
        "profile": None,
        "sample_stacks": False,
        "fingerprint_batches": 0,
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(plan | changes))
    return path


def run_plain(
    command: list[str],
    cwd: Path,
    stdin: str = "",
    timeout: float = 600,
    forked: bool = False,
    **env: str,
) -> Probed:
    """Run `python command...` as if torchdoctor did not exist."""
    surroundings = environment(None, **env)
    with tempfile.TemporaryDirectory() as name:
        ended = run(
            command, cwd, surroundings, Path(name), stdin=stdin, timeout=timeout, forked=forked
        )
    return Probed(ended.returncode, ended.stdout, ended.stderr)


def run_probed(
    command: list[str],
    cwd: Path,
    folder: Path,
    stdin: str = "",
    timeout: float = 600,
    env: dict[str, str] | None = None,
    forked: bool = False,
    lingers_s: float = 0.1,
    **plan: Any,
) -> Probed:
    """Run `python command...` under the probe; killed once a process says that it is done.

    `forked`: see `forked_programs`; for tests of what the probe sees, not of how it gets in.
    `lingers_s`: how long a script that goes on after its window may betray itself.
    """
    path = write_plan(folder, **plan)
    channel = folder / "channel"
    streams = _, out, err = streams_in(folder, stdin)
    process = start(command, cwd, environment(path, **(env or {})), streams, forked)
    goes_on = plan.get("after") == "continue"
    stopped_by = _wait(process, channel, timeout, goes_on, lingers_s)
    assert process.returncode is not None
    result = Probed(process.returncode, out.read_text(), err.read_text(), channel, stopped_by)
    _read(result, channel)
    return result


def _wait(
    process: Process, channel: Path, timeout: float, goes_on: bool, lingers_s: float
) -> str | None:
    deadline = time.monotonic() + timeout
    stopped_by = None
    try:
        while process.poll() is None:
            if not goes_on and any(channel.glob("done-*.json")):
                stopped_by = "done"
                time.sleep(lingers_s)
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"still running after {timeout} s")
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return stopped_by


def _read(result: Probed, channel: Path) -> None:
    for path in channel.glob("process-*.json"):
        result.facts[int(path.stem.split("-")[1])] = json.loads(path.read_text())
    for path in channel.glob("events-*.bin"):
        rows = np.fromfile(path, dtype="<i8").reshape(-1, 4)
        result.events[int(path.stem.split("-")[1])] = rows[np.argsort(rows[:, 2], kind="stable")]
