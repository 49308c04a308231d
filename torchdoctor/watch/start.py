"""Starts a watched training: this process becomes the program, another one stays beside it.

The program has the process, terminal, signals and exit status that it would have without us: the
command is executed in our own place.
"""

import json
import os
import signal
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from torchdoctor import __version__
from torchdoctor.launch.launch import PROBE
from torchdoctor.launch.launch_spec import entry_points
from torchdoctor.launch.run_folder import new_run_folder
from torchdoctor.schema import Workload, secret_values
from torchdoctor.schema.errors import UsageError
from torchdoctor.steps.evidence import NAMED_KINDS
from torchdoctor.watch.recording import FOLDER, Start, write_start

_NO_DESCRIPTOR_ABOVE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """What the user asked for beside the program."""

    output: Path | None = None
    step_on: str | None = None
    profile: bool = False  # torch writes to stderr whenever a profiler starts
    metrics_file: Path | None = None
    tensorboard: Path | None = None
    log_to_tracker: bool = False


def watch(workload: Workload, settings: WatchSettings) -> NoReturn:
    """Become the program, with the probe in it and a process of ours beside it.

    Raise UsageError if the run folder cannot be written or the command cannot be executed.
    """
    _check(settings)
    folder = _folder(settings.output, workload.cwd)
    host = socket.gethostname()
    start = Start(
        host=host,
        pid=os.getpid(),
        command=secret_values.masked(workload.command),
        cwd=workload.cwd,
        python=workload.python,
        script=workload.script,
        torchdoctor=__version__,
        start_ns=time.monotonic_ns(),
        start_unix_ns=time.time_ns(),
    )
    plan = {
        "watch": {"log_to_tracker": settings.log_to_tracker},
        "pid": start.pid,
        "channel": str(folder / FOLDER),
        "step_on": settings.step_on,
        "profile": settings.profile,
        "entry_points": entry_points(),
    }
    plan_file = folder / f"plan-{host}-{os.getpid()}.json"
    try:
        (folder / FOLDER).mkdir(exist_ok=True)
        write_start(folder / FOLDER, start)
        plan_file.write_text(json.dumps(plan), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"Cannot write to {folder} ({error.strerror}): name another folder with --output."
        ) from None
    _leave_beside(folder, start, settings)
    environment = dict(os.environ)
    paths = filter(None, [str(PROBE), environment.get("PYTHONPATH")])
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "TORCHDOCTOR_PLAN": str(plan_file)}
    for name in ("SIGPIPE", "SIGXFSZ"):  # which Python ignores from its start on
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(workload.command[0], workload.command, environment)
    except OSError as error:
        raise UsageError(
            f"The command '{workload.command[0]}' cannot be started: {error.strerror}."
        ) from None


def _check(settings: WatchSettings) -> None:
    kinds = NAMED_KINDS
    metrics = settings.metrics_file
    if settings.step_on not in (None, *kinds):
        raise UsageError(
            f"--step-on takes {', '.join(kinds[:-1])} or {kinds[-1]}, not '{settings.step_on}'."
        )
    if metrics is not None and (not os.access(metrics.parent, os.W_OK) or metrics.is_dir()):
        raise UsageError(f"Cannot write {metrics}: name a file in a folder that exists.")


def _folder(output: Path | None, cwd: str) -> Path:
    """Return the run folder; several hosts may write to one that others of them made."""
    if output is not None and any((output / FOLDER).glob("run-*.json")):
        return output.absolute()
    return new_run_folder(output, cwd, datetime.now().astimezone(), shared=True)


def _leave_beside(folder: Path, start: Start, settings: WatchSettings) -> None:
    """Leave a process of ours beside the program: no child of it, in a session of its own."""
    print(end="", flush=True)  # stdout may be closed
    try:
        child = os.fork()
    except OSError:
        return  # no room for another process: the program's own log is written all the same
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            terminal = os.dup(2) if os.isatty(2) else None
            _forget_descriptors(folder / FOLDER / f"torchdoctor-{start.host}.log", terminal)
            _stay(folder, start, settings, None if terminal is None else 3)
    finally:
        os._exit(0)  # also where it failed: not a word of it belongs among the program's


def _stay(folder: Path, start: Start, settings: WatchSettings, terminal: int | None) -> None:
    """Be the process beside the program, to its end; what fails is kept in our log."""
    import traceback

    from torchdoctor.watch.beside import Beside
    from torchdoctor.watch.live_figures import LiveFigures

    try:
        figures = LiveFigures(folder / FOLDER, settings.metrics_file, settings.tensorboard)
        Beside(folder, start, figures, terminal).run()
    except BaseException:
        traceback.print_exc()


def _forget_descriptors(log: Path, terminal: int | None) -> None:
    """Hold nothing of the user's open: who reads the program's output waits for its end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    ours = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, target in ((nothing, 0), (ours, 1), (ours, 2), (terminal or nothing, 3)):
        os.dup2(descriptor, target)
    os.closerange(4, _NO_DESCRIPTOR_ABOVE)
