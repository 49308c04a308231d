"""Programs forked from one process that has imported torch: the import is most of a short run.

Everything else is as in a process of its own: arguments, working directory, environment, standard
streams, a session, the probe by its own sitecustomize, functions at exit. What torch reads
of the environment while it is loaded cannot differ from program to program, so those that set it,
and tests of how the probe gets in, start real processes. The simulated GPU is loaded before
torch: programs that name it are forked from a process of its own.

The server, this file's end, takes one JSON request a line and answers likewise.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

_READ_AT_IMPORT = ("OMP_", "MKL_", "KMP_", "GOMP_", "LD_", "ATEN_", "ONEDNN_", "MALLOC_", "PYTHON")
_MAY_DIFFER = ("PYTHONPATH",)
_LOADED_FIRST = ("SIMULATED_GPU_LIBRARY", "SIMULATED_ACCELERATOR")


class Process(Protocol):
    """What is used of a process, forked or started anew."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...


@dataclass
class Forked:
    """A program that runs, with the part of `subprocess.Popen` that tests use."""

    pid: int
    server: _Server
    returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._status(wait=False)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, that many seconds at most.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        deadline = time.monotonic() + (timeout or 0.0)
        while (status := self._status(wait=timeout is None)) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.02)
        return status

    def _status(self, wait: bool) -> int | None:
        if self.returncode is None:
            self.returncode = self.server.ask({"pid": self.pid, "wait": wait})["status"]
        return self.returncode


def streams_in(folder: Path, stdin: str = "") -> tuple[Path, Path, Path]:
    """Files for stdin, which holds this, stdout and stderr."""
    given, out, err = (folder / f"{name}.txt" for name in ("stdin", "stdout", "stderr"))
    given.write_text(stdin)
    return given, out, err


def start(
    command: list[str],
    cwd: Path,
    env: dict[str, str],
    streams: tuple[Path, Path, Path],
    forked: bool = True,
) -> Process:
    """Start `python command...` in a session of its own, forked where that can be."""
    if forked and hasattr(os, "fork") and _early(env) == _early(environment()):
        request = {"argv": command, "cwd": str(cwd), "env": env}
        streamed = request | {"streams": [str(path) for path in streams]}
        server = _Server.running(tuple((x, env[x]) for x in _LOADED_FIRST if x in env))
        return Forked(server.ask(streamed)["pid"], server)
    stdin, stdout, stderr = streams
    with stdin.open() as given, stdout.open("w") as out, stderr.open("w") as err:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env=env,
            stdin=given,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def run(
    command: list[str],
    cwd: Path,
    env: dict[str, str],
    folder: Path,
    *,
    stdin: str = "",
    timeout: float = 600,
    forked: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; its streams go through files in `folder`.

    Raises:
        subprocess.TimeoutExpired: it was still running, and was killed.
    """
    streams = _, out, err = streams_in(folder, stdin)
    process = start(command, cwd, env, streams, forked)
    deadline = time.monotonic() + timeout
    while (status := process.poll()) is None:
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise subprocess.TimeoutExpired(command, timeout)
        time.sleep(0.02)
    return subprocess.CompletedProcess(command, status, out.read_text(), err.read_text())


def environment(**changes: str) -> dict[str, str]:
    """This process's own without its probe, as the server has it, with changes."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TORCHDOCTOR_PLAN")}
    read_early = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    return {**kept, **read_early, **changes}


def _early(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_IMPORT) and name not in _MAY_DIFFER
    }


class _Server:
    """One for each process of pytest, and one more for each simulated GPU."""

    _of_this_process: ClassVar[dict[tuple[tuple[str, str], ...], _Server]] = {}

    def __init__(self, gpu: tuple[tuple[str, str], ...]) -> None:
        self._process = subprocess.Popen(
            # Frames of "<string>" are below the program's, and no file of the user's.
            [sys.executable, "-c", Path(__file__).read_text()],
            env=environment(**dict(gpu)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @classmethod
    def running(cls, gpu: tuple[tuple[str, str], ...]) -> _Server:
        if gpu not in cls._of_this_process:
            cls._of_this_process[gpu] = cls(gpu)
        return cls._of_this_process[gpu]

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> dict[str, Any]:
    """Answer until stdin ends. Returns only in a forked child: what it is to run."""
    for line in sys.stdin:
        request = json.loads(line)
        if "pid" in request:
            done, status = os.waitpid(request["pid"], 0 if request["wait"] else os.WNOHANG)
            answer = {"status": os.waitstatus_to_exitcode(status) if done else None}
        else:
            _import_what_compiling_imports(request)
            pid = os.fork()
            if not pid:
                return request
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)
    sys.exit()


def _import_what_compiling_imports(request: dict[str, Any]) -> None:
    """Before the first program that compiles is forked: a second for each of them."""
    if any("compile" in text for text in _texts(request)):
        for name in ("torch._dynamo.backends.debugging", "torch._inductor.cudagraph_trees"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        _keep_what_was_imported()


def _keep_what_was_imported() -> None:
    """No program collects it or takes it apart at its end: memory that is shared would be copied.

    To a program that names gc it is given back, which then sees what a process of its own would.
    """
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    gc.freeze()


def _texts(request: dict[str, Any]) -> list[str]:
    """The program and its plan."""
    read = [Path(request["cwd"], request["argv"][0]), request["env"].get("TORCHDOCTOR_PLAN")]
    return [Path(path).read_text() for path in read if path]


def _become(request: dict[str, Any]) -> types.CodeType:
    """This process is the program from here, whose code is returned."""
    os.setsid()
    if any("gc" in text for text in _texts(request)):
        gc.unfreeze()
    modes = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_TRUNC] * 2)
    for number, (path, mode) in enumerate(zip(request["streams"], modes, strict=True)):
        opened = os.open(path, mode, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    # The server's own has been read ahead.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    script = Path(request["cwd"], sys.argv[0])
    entries = [e for e in request["env"].get("PYTHONPATH", "").split(os.pathsep) if e]
    sys.path[:1] = [str(script.parent), *entries]
    for name in ("random", "numpy.random"):
        if name in sys.modules:
            sys.modules[name].seed()  # type: ignore[attr-defined]
    if _LOADED_FIRST[0] in request["env"]:
        importlib.import_module("simulated_gpu.attach")
    # Read before the probe watches what is read.
    code = compile(script.read_bytes(), sys.argv[0], "exec")
    for entry in entries[:1]:
        spec = importlib.util.spec_from_file_location(
            "sitecustomize", Path(entry, "sitecustomize.py")
        )
        assert spec is not None and spec.loader is not None
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        with contextlib.suppress(FileNotFoundError):
            spec.loader.exec_module(module)
    return code


def _run(code: types.CodeType, leave: Callable[[int], NoReturn]) -> None:
    """As `python script` does, with a traceback that begins in the program.

    The modules are not taken apart at the end: half a second that shows nothing.
    """
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = code.co_filename
    status: Any = 0
    try:
        exec(code, module.__dict__)
    except SystemExit as error:
        status = error.code
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException as error:
        raised = error.__traceback__
        traceback.print_exception(type(error), error, raised and raised.tb_next)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    leave(status or 0)


if __name__ == "__main__":
    import random  # noqa: F401

    if _LOADED_FIRST[0] in os.environ:
        ctypes.CDLL(os.environ[_LOADED_FIRST[0]], mode=ctypes.RTLD_GLOBAL)
    import torch
    import torch._dynamo  # by the first step of an optimizer  # noqa: F401

    _keep_what_was_imported()
    _run(_become(_serve()), os._exit)
