"""The times of a program's optimizer steps, noted without torchdoctor's probe.

This file is copied as `sitecustomize.py` into a folder of its own, which stands first on
PYTHONPATH: so the program starts as it always does, by its own command, and Python runs this file
first. When the program imports torch's optimizers, a hook that torch offers for the end of each
step is registered, and notes the time. Nothing else of the program is touched. The times are
written when the program ends, or when it has done what it was to do, which then ends it.

Imports of other benchmarks and of torchdoctor have no place here: this runs in the program.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.abc
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHERE = "STEP_TIMES_FOLDER"  # each process that trains writes a file there
MOST_S = "STEP_TIMES_MOST_S"  # since the first step, which may have compiled
MOST_STEPS = "STEP_TIMES_MOST_STEPS"
_HOOKED = "torch.optim.optimizer"
_ENDING_S = 60.0  # from its last step on, a program may take so long to end
_START_S = 300.0  # until its first step: imports, data, compilation


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Times of the optimizer that stepped most often, and how the program ended."""

    times_s: list[float]  # the end of each step, on a clock of its own
    ended: str  # "by itself", "stopped" by what it was allowed, "failed" or "timed out"
    said: str = ""  # the last line that a failed program wrote


def timed(
    command: list[str], cwd: Path, environment: dict[str, str], scratch: Path,
    most_s: float, most_steps: int = 0,
) -> Timed:  # fmt: skip
    """Run a program for so many seconds or steps (0: any number), or to its end.

    Args:
        command: as the program is always started.
        cwd: where it is started.
        environment: of the program, without what this needs.
        scratch: an empty folder for the times.
        most_s: seconds since its first step.
        most_steps: of the optimizer that steps most often.
    """
    (scratch / "hook").mkdir(parents=True)
    (scratch / "times").mkdir()
    shutil.copy(__file__, scratch / "hook" / "sitecustomize.py")
    paths = [str(scratch / "hook"), environment.get("PYTHONPATH", "")]
    settings = {WHERE: str(scratch / "times"), MOST_S: str(most_s), MOST_STEPS: str(most_steps)}
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    code, said = run_alone(command, cwd, environment | settings, _START_S + most_s + _ENDING_S)
    several = [json.loads(path.read_text()) for path in (scratch / "times").glob("*.json")]
    found = max(several, key=lambda one: len(one["times_s"]), default=None)
    times_s = found["times_s"] if found else []
    if code is None:
        return Timed(times_s=times_s, ended="timed out")
    if code != 0:
        return Timed(times_s=times_s, ended="failed", said=said)
    stopped = found is not None and found["stopped"]
    return Timed(times_s=times_s, ended="stopped" if stopped else "by itself")


def run_alone(
    command: list[str], cwd: Path, environment: dict[str, str], most_s: float
) -> tuple[int | None, str]:
    """Run a program in a session of its own, which ends with it.

    Returns:
        Its exit code (None: it was ended after `most_s`), and the last line of its errors.
    """
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command, cwd=cwd, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
        ) as program,
    ):  # fmt: skip
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = program.wait(most_s)
        with contextlib.suppress(ProcessLookupError):  # the workers of its loaders too
            os.killpg(program.pid, signal.SIGKILL)
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    return code, lines[-1] if lines else ""


class _Steps:
    """The times of each optimizer's steps in this process."""

    def __init__(self) -> None:
        self.most_s = float(os.environ[MOST_S])
        self.most_steps = int(os.environ[MOST_STEPS])
        self.process = os.getpid()
        self.times: dict[int, list[float]] = {}
        self.kept: list[Any] = []  # so that no other optimizer gets the same id
        self.began_s = 0.0

    def note(self, optimizer: Any, arguments: Any, named: Any) -> None:
        now_s = time.perf_counter()
        if os.getpid() != self.process:  # forked off
            return
        if id(optimizer) not in self.times:
            self.times[id(optimizer)] = []
            self.kept.append(optimizer)
        times = self.times[id(optimizer)]
        times.append(now_s)
        self.began_s = self.began_s or now_s
        late = now_s - self.began_s > self.most_s
        if late or 0 < self.most_steps <= len(times):
            self.write(stopped=True)
            os._exit(0)

    def write(self, stopped: bool = False) -> None:
        if os.getpid() != self.process or not self.times:
            return
        found = {"times_s": max(self.times.values(), key=len), "stopped": stopped}
        name = f"{self.process}.json"
        Path(os.environ[WHERE], name).write_text(json.dumps(found), encoding="utf-8")


class _WhenImported(importlib.abc.MetaPathFinder):
    """Registers the hook right after the module that has it was imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _HOOKED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_hook(module: Any) -> None:
            execute(module)
            steps = _Steps()
            module.register_optimizer_step_post_hook(steps.note)
            atexit.register(steps.write)

        spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize" and WHERE in os.environ:
    sys.meta_path.insert(0, _WhenImported())
