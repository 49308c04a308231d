"""The process of ours beside a watched program: sensors, alerts, live figures, the end report.

Nothing depends on it: it may be killed at any time, and the program and its log go on.
"""

import contextlib
import dataclasses
import json
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from torchdoctor.machine import nvml
from torchdoctor.machine.processes import tree
from torchdoctor.schema.figures import clean
from torchdoctor.watch.alerts import Alerts
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
        self._folder = folder / FOLDER
        self._start = start
        self._terminal = terminal
        self._figures = figures
        self._alerts = Alerts(self._folder)
        self._alert_file = layout.AppendedFile(str(self._folder / f"alerts-{start.host}.jsonl"))

    def run(self) -> None:
        """Stay until the program has ended; then write how, and the report."""
        os.nice(19)
        pid = self._start.pid
        descriptor = _descriptor_of(self._start.pid)
        with nvml.session() as gpus:
            name = f"machine-{self._start.host}-{self._start.pid}.sensors"
            machine = MachineLog(pid, self._folder / name, gpus)
            began_s = time.monotonic()
            look_s = time.monotonic() + _LOOK_S
            while True:
                now_s = time.monotonic()
                _quietly(machine.sample)
                if now_s >= look_s:
                    self._look(machine)
                    took_s = time.monotonic() - now_s
                    look_s = now_s + max(_LOOK_S, took_s / _COST_SHARE)
                every_s = min(_MOST_S, max(_EVERY_S, _SHARE * (now_s - began_s)))
                if _ended_within(pid, descriptor, every_s):
                    break
            self._wait_for_others()
            self._look(machine)
        self._end()

    def _look(self, machine: MachineLog) -> None:
        _quietly(lambda: self._figures.write(machine.last))
        _quietly(self._tell)

    def _tell(self) -> None:
        """Keep new alerts, and say each in one line where stderr is a terminal."""
        for alert in self._alerts.new():
            self._alert_file.add(json.dumps(dataclasses.asdict(alert)).encode() + b"\n")
            if self._terminal is not None:
                line = f"\r\x1b[Ktorchdoctor: {clean(alert.sentence)}\n"
                with contextlib.suppress(OSError):  # a terminal that was closed
                    os.write(self._terminal, line.encode())
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
        here = [log.process for log in logs if log.process.host == self._start.host]
        # Some end their workers by force when all is done, as Ray does: the first process counts.
        # exec keeps its number.
        first = [process.exited for process in here if process.pid == self._start.pid][-1:]
        exited = all(first or [process.exited for process in here]) if here else None
        ended = dataclasses.replace(self._start, end_unix_ns=time.time_ns(), exited=exited)
        write_start(self._folder, ended)
        self._figures.close()
        from torchdoctor.watch.end_report import write_end_report  # not while the program runs

        _quietly(lambda: write_end_report(self._folder))


def _descriptor_of(pid: int) -> int | None:
    """Return a descriptor of a process of others, open until our own ends; None: not here."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)  # a pid alone may pass on to another
    return None


def _ended_within(pid: int, descriptor: int | None, seconds: float) -> bool:
    if descriptor is not None:
        return bool(select.select([descriptor], [], [], seconds)[0])
    time.sleep(seconds)
    return not tree(pid)


def _quietly(function: Callable[[], None]) -> None:
    """Call it; a failure costs this one sample or look, and is kept in our log."""
    try:
        function()
    except Exception as error:
        print(f"{time.strftime('%X')} {type(error).__name__}: {error}", flush=True)
