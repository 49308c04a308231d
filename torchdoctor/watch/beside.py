"""The process of ours beside a watched program: sensors, alerts, live figures, the end report.

Nothing depends on it: it may be killed at any time, and the program and its log go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import select
import time
from pathlib import Path
from typing import Any

from torchdoctor.machine import nvml
from torchdoctor.machine.processes import tree
from torchdoctor.watch.inside import layout
from torchdoctor.watch.live_figures import LiveFigures
from torchdoctor.watch.machine_log import MachineLog
from torchdoctor.watch.recording import FOLDER, Start, read_run, write_start

_EVERY_S, _MOST_S, _SHARE = 1.0, 15.0, 1e-4  # of sensors: the interval grows with the run
_LOOK_S = 5.0  # for alerts, and to write figures
_COST_SHARE = 0.02  # of the time that the looks may take
_PATIENCE_S = 3.0  # for the last words of processes that outlive the first one


class Beside:
    """One watched program, from its start to its end report."""

    def __init__(
        self, folder: Path, start: Start, figures: LiveFigures, terminal: int | None
    ) -> None:
        self._folder, self._start = folder / FOLDER, start
        self._terminal, self._figures = terminal, figures
        self._alerts = _optional("alerts", "Alerts", self._folder)
        self._alert_file = layout.AppendedFile(str(self._folder / f"alerts-{start.host}.jsonl"))

    def run(self) -> None:
        """Stay until the program has ended; then write how, and the report."""
        os.nice(19)
        life = _Life(self._start.pid)
        with nvml.session() as gpus:
            name = f"machine-{self._start.host}-{self._start.pid}.sensors"
            machine = MachineLog(self._start.pid, self._folder / name, gpus)
            began_s, look_s = time.monotonic(), time.monotonic() + _LOOK_S
            while True:
                now_s = time.monotonic()
                _quietly(machine.sample)
                if now_s >= look_s:
                    self._look(machine)
                    took_s = time.monotonic() - now_s
                    look_s = now_s + max(_LOOK_S, took_s / _COST_SHARE)
                every_s = min(_MOST_S, max(_EVERY_S, _SHARE * (now_s - began_s)))
                if life.ended_within(every_s):
                    break
            self._wait_for_others()
            self._look(machine)
        self._end()

    def _look(self, machine: MachineLog) -> None:
        _quietly(lambda: self._figures.write(machine.last))
        if self._alerts is not None:
            _quietly(self._tell)

    def _tell(self) -> None:
        """Keep new alerts, and say each in one line where stderr is a terminal."""
        for alert in self._alerts.new():
            self._alert_file.add(json.dumps(dataclasses.asdict(alert)).encode() + b"\n")
            if self._terminal is not None:
                with contextlib.suppress(OSError):  # a terminal that was closed
                    os.write(self._terminal, f"\r\x1b[Ktorchdoctor: {alert.sentence}\n".encode())
        self._alert_file.flush()

    def _wait_for_others(self) -> None:
        """Wait a little for processes that still write, as ranks whose launcher was killed."""
        until_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s:
            with contextlib.suppress(FileNotFoundError):
                logs = [log.process for log in read_run(self._folder).processes]
                here = [p for p in logs if p.host == self._start.host and not p.exited]
                if not any(tree(process.pid) for process in here):
                    return
            time.sleep(0.1)

    def _end(self) -> None:
        logs = read_run(self._folder).processes
        here = [log.process.exited for log in logs if log.process.host == self._start.host]
        ended = dataclasses.replace(
            self._start, end_unix_ns=time.time_ns(), exited=all(here) if here else None
        )
        write_start(self._folder, ended)
        self._figures.close()
        _optional("end_report", "write_end_report", self._folder)


class _Life:
    """A process of others, whose end is waited for."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor: int | None = None  # open until our own process ends
        with contextlib.suppress(OSError, AttributeError):
            self._descriptor = os.pidfd_open(pid)  # a pid alone may pass on to another

    def ended_within(self, seconds: float) -> bool:
        """Wait so long at most; True once it has ended."""
        if self._descriptor is not None:
            return bool(select.select([self._descriptor], [], [], seconds)[0])
        time.sleep(seconds)
        return not tree(self._pid)


def _optional(module: str, name: str, folder: Path) -> Any:
    """Return what a part of the room makes of the folder; None: it failed, as our log says."""
    try:
        return getattr(importlib.import_module(f"torchdoctor.watch.{module}"), name)(folder)
    except Exception as error:
        print(f"{module}: {type(error).__name__}: {error}", flush=True)
        return None


def _quietly(function: Any) -> None:
    """Call it; a failure costs this one sample or look, and is kept in our log."""
    try:
        function()
    except Exception as error:
        print(f"{time.strftime('%X')} {type(error).__name__}: {error}", flush=True)
