"""What a gate's launches ran on, and what of it weakens the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchdoctor.launch.escaped_writes import escape_doubt
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.machine.environment import environment
from torchdoctor.observe.observation import Observation
from torchdoctor.pairs.record import Recorder
from torchdoctor.words import Environment, Workload


def environment_of(workload: Workload, seen: Observation, sandbox: Sandbox) -> Environment:
    """The machine, and the software as the program itself saw it."""
    found, program = environment(workload.python), seen.processes[0]
    return replace(
        found, torch=program.torch or found.torch, cuda=program.cuda, sandbox=sandbox.mode
    )


def launch_doubts(recorders: Sequence[Recorder], sandbox: Sandbox) -> list[str]:
    """What the launches themselves gave reason to doubt, and the sandbox they ran in."""
    found = [doubt for recorder in recorders for doubt in recorder.doubts]
    escaped = dict.fromkeys(path for recorder in recorders for path in recorder.escaped)
    found += escape_doubt(list(escaped), sandbox.mode)
    return [*found, *([sandbox.doubt] if sandbox.doubt else [])]
