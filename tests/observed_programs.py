"""Programs written to a folder of their own and observed there as `torchdoctor run` does it.

All but their start: they are forked from a process that has imported torch (`forked_programs`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

import forked_programs

from torchdoctor.bench.measurement import Pace, ProgramLaunches
from torchdoctor.bench.record import Recorder
from torchdoctor.launch.launch_spec import UNTOUCHED
from torchdoctor.launch.sandbox import Command, Sandbox, Started
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import Window
from torchdoctor.schema import Environment, LaunchTiming, Recording, Workload


class Forking(Sandbox):
    """No sandbox, and no new interpreter."""

    def start(self, command: Command, folder: Path, **_: Any) -> Started:
        """As `Sandbox.start`; what torch reads while it is loaded is as the tests have it."""
        env = forked_programs.environment()
        env |= {name: value for name, value in command.environment.items() if name not in env}
        env["PYTHONPATH"] = command.environment["PYTHONPATH"]
        log = cast(Any, command.output).name
        streams = (Path(os.devnull), folder / "stdout.txt", Path(log))
        forked: Any = forked_programs.start(command.words[1:], Path(command.cwd), env, streams)
        assert isinstance(forked, forked_programs.Forked), (
            "its environment differs from the server's"
        )
        return Started(popen=forked, status_fd=None, folder=folder, program_pid=forked.pid)


def recorder_of(source: str, folder: Path) -> Recorder:
    """For `source` as train.py in `folder`/program."""
    script = folder / "program" / "train.py"
    script.parent.mkdir()
    script.write_text(source)
    workload = Workload(
        command=[sys.executable, "train.py"], cwd=str(script.parent), script=str(script)
    )
    sandbox = Forking.choose("none", folder, workload)
    return Recorder(workload, folder / "run", sandbox, 0, None, 300.0)


def timed(recorder: Recorder, seen: Observation, window: Window) -> LaunchTiming:
    """Return what a window of the untouched program measured."""
    launches = ProgramLaunches(recorder=recorder, pace=Pace.of(seen), window=window)
    return launches.alone(UNTOUCHED, 120.0)


def observe(recorder: Recorder, step_on: str | None = None) -> Observation:
    """One launch, in which no hook of the probe fails."""
    seen = recorder.observe(step_on, enough_s=60.0, most_s=200.0)
    assert [text for one in seen.processes for text in one.probe_errors] == []
    return seen


def recording_of(seen: Observation) -> Recording:
    """What checks look at, without a trace."""
    return Recording(
        workload=Workload(command=["train.py"], cwd="/"),
        environment=Environment(),
        steps=seen.steps,
        processes=seen.processes,
    )
