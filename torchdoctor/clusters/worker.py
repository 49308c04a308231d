"""Measures one pair on this machine: `python -m torchdoctor.clusters.worker TASKFILE`.

The result is written beside the task, whole or not at all, as TASKFILE.result.
"""

import contextlib
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from torchdoctor.bench.engine import measure
from torchdoctor.bench.measurement import ProgramLaunches
from torchdoctor.bench.record import Recorder
from torchdoctor.clusters.tasks import Launches, Result, Task, decoded, encoded
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.launch.workload import has_torch
from torchdoctor.machine.environment import environment
from torchdoctor.schema import Evidence, fact, message, within
from torchdoctor.schema.errors import TorchdoctorError
from torchdoctor.schema.record_files import write_atomically

SUFFIX = ".result"


def result_of(data: bytes, name: str = "the task") -> bytes:
    """Measure the pair of a task and return its result, with the problem where there is one.

    Raise KeyboardInterrupt once everything that was started has ended.
    """
    node = os.environ.get("SLURMD_NODENAME") or platform.node()
    try:
        task = decoded(data, Task, name)
        problem = _missing(task.launches, node)
        result = Result(node=node, problem=problem) if problem else _measured(task, node)
    except (TorchdoctorError, OSError) as error:
        result = Result(node=node, problem=message(str(error)))
    return encoded(result)


def _missing(launches: Launches, node: str) -> Evidence | None:
    """Return what this machine lacks of the program; None: nothing."""
    workload = launches.workload
    for path in filter(None, [workload.cwd, workload.script]):
        if not Path(path).exists():
            return fact("path-not-on-node", path=path, node=node)
    if workload.python is None:
        return None
    if shutil.which(workload.python) is None:
        return fact("python-not-on-node", python=workload.python, node=node)
    if not has_torch(workload.python):
        return fact("torch-not-on-node", python=workload.python, node=node)
    return None


def _measured(task: Task, node: str) -> Result:
    wanted = task.launches
    folder = Path(tempfile.mkdtemp(prefix="torchdoctor-pair-"))
    try:
        for name, data in (("stdin", wanted.stdin), ("files-read.txt", wanted.files_read)):
            if data is not None:
                (folder / name).write_bytes(data)
        stdin = folder / "stdin" if wanted.stdin is not None else None
        mode = "auto" if wanted.sandbox else "none"
        with Sandbox.choose(mode, folder, wanted.workload, network=wanted.network) as sandbox:
            if sandbox.mode != "overlay" and any(arm.contents or arm.links for arm in task.arms):
                why = within(sandbox.why) if sandbox.why is not None else None
                problem = fact("overlay-not-on-node", node=node, why=why)
                return Result(node=node, problem=problem)
            seed, timeout_s, forks = wanted.seed, wanted.timeout_s, wanted.forks
            recorder = Recorder(wanted.workload, folder, sandbox, seed, stdin, timeout_s, forks)
            with contextlib.closing(recorder):
                launches = ProgramLaunches(
                    recorder=recorder,
                    pace=wanted.pace,
                    window=wanted.window,
                    turns=wanted.turns,
                    cold=wanted.cold,
                )
                pair = measure(launches, task.pair(), random.Random(task.seed), time.monotonic)
                if any(timing.ended == "interrupted" for timing in pair.timings):
                    raise KeyboardInterrupt
                return Result(
                    node=node,
                    kind=_kind(wanted.workload.python),
                    timings=pair.timings,
                    seconds=pair.seconds,
                    doubts=[*recorder.doubts, *sandbox.doubts],
                    escaped=recorder.escaped,
                    contacts=recorder.contacts,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kind(python: str | None) -> str:
    """Return the processor and the GPUs of this machine."""
    machine = environment(python)
    gpus = sorted({gpu.name for gpu in machine.gpus})
    return ", ".join([f"{machine.cpu}, {machine.cpus:g} CPUs", *gpus])


def main(path: str) -> int:
    """Measure the pair of a task file; 0: its result is written, 130: it was interrupted."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    file = Path(path)
    try:
        write_atomically(f"{path}{SUFFIX}", result_of(file.read_bytes(), path))
    except KeyboardInterrupt:
        return 130
    except (TorchdoctorError, OSError) as error:
        print(f"torchdoctor on {platform.node()}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
