"""Whatever a program does, its launches end with the budget."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from torchdoctor.bench.record import Recorder
from torchdoctor.bench.turns import take_turns
from torchdoctor.launch.held_up import may_be_held_up
from torchdoctor.launch.launch_spec import UNTOUCHED, LaunchSpec
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.observe import observation
from torchdoctor.observe.observation import ObservationWatch
from torchdoctor.observe.step_finding import StepsFound
from torchdoctor.schema import Boundary, Workload
from torchdoctor.schema.errors import TimedOut

ENDLESS = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)\n"
SPEC = LaunchSpec(name="endless", boundary=Boundary(kind="optimizer", ident=0), plan={})


def recorder_of(folder: Path, sandbox: Sandbox, left_s: float) -> Recorder:
    (folder / "train.py").write_text(ENDLESS)
    workload = Workload(command=[sys.executable, "train.py"], cwd=str(folder))
    recorder = Recorder(workload, folder / "out", sandbox, 0, None, 600.0)
    recorder.end_by(time.monotonic() + left_s)
    return recorder


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_a_program_without_an_end_is_ended_with_the_budget(tmp_path: Path, mode: str) -> None:
    with Sandbox.choose(mode, tmp_path) as sandbox:
        recorder = recorder_of(tmp_path, sandbox, left_s=1.0)
        timing = recorder.time(SPEC, timeout_s=500.0)
        assert timing.cut_off and timing.wall_s < 100.0
        with pytest.raises(TimedOut):
            recorder.observe(None, enough_s=60.0, most_s=200.0)


def test_launches_side_by_side_are_ended_with_the_budget(tmp_path: Path) -> None:
    with Sandbox.choose("auto", tmp_path) as sandbox:
        recorder = recorder_of(tmp_path, sandbox, left_s=500.0)
        starts = [lambda poll: recorder.time(SPEC, 500.0, poll) for _ in range(2)]
        now_s = time.monotonic()
        both = take_turns((starts[0], starts[1]), [0, 1, 1, 0], 1.0, now_s + 500.0, now_s + 1.0)
    assert all(timing.stopped or timing.wall_s < 100.0 for timing in both)
    assert not any(timing.late for timing in both), "nobody's turn was too long"


def test_a_launch_that_ends_before_the_budget_is_not_cut_off(tmp_path: Path) -> None:
    with Sandbox.choose("auto", tmp_path) as sandbox:
        recorder = recorder_of(tmp_path, sandbox, left_s=500.0)
        assert not recorder.time(SPEC, timeout_s=0.5).cut_off
        assert recorder.left_s > 100.0
        assert recorder.image(UNTOUCHED) is None


@pytest.mark.parametrize("hangs", [True, False])
def test_observing_ends_where_a_program_hangs_after_its_first_steps(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was watched until its time was up: 20 s of a budget of 60 showed nothing more."""
    found: Any = StepsFound.__new__(StepsFound)
    object.__setattr__(found, "trainers", [1])
    monkeypatch.setattr(observation, "read_channel", lambda channel: ({1: None}, {}, []))
    monkeypatch.setattr(observation, "find_boundary", lambda *_: found)
    watch = ObservationWatch(None, enough_s=60.0, most_s=10.0, wait_s=100.0)
    verdicts = []
    for elapsed_s in (5.0, 12.0, 16.0):
        seconds = 1.0 if hangs else elapsed_s - 4.0
        steps = _Durations(seconds)
        monkeypatch.setattr(observation, "step_durations", lambda *_, x=steps: x)
        running: Any = SimpleNamespace(channel=None, elapsed_s=elapsed_s)
        watch._next_look = 0.0
        verdicts.append(watch(running))
    assert verdicts == [False, False, True]


class _Durations:
    """Five steps that took so many seconds together."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 5

    def sum(self) -> float:
        return self._seconds


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""A page."""\nimport time\nimport torch\n', True),
        ("import numpy as np\nimport torch\n", True),
        ("import time\ntime.sleep(20)\nimport torch\n", False),
        ("import own\nimport torch\n", False),
        ("from own import train\n", False),
        ("def main():\n    import torch\n", False),
        ("import torch\nimport own\n", True),
        ("import (", False),
    ],
)
def test_an_image_is_not_begun_where_reading_tells_that_it_fails(
    tmp_path: Path, source: str, expected: bool
) -> None:
    """It would take as long as the program does until then: 20 s of a minute."""
    (tmp_path / "own.py").write_text("import torch\n")
    script = tmp_path / "train.py"
    script.write_text(source)
    assert may_be_held_up(script) == expected


@pytest.mark.parametrize(("is_decided", "ends"), [(True, True), (False, False)])
def test_observing_goes_on_until_it_is_decided_what_a_step_is(
    is_decided: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow machine came to forty micro-batches and to no optimizer step: they were the steps."""
    found: Any = StepsFound.__new__(StepsFound)
    object.__setattr__(found, "trainers", [1])
    object.__setattr__(found, "is_decided", is_decided)
    monkeypatch.setattr(observation, "read_channel", lambda channel: ({1: None}, {}, []))
    monkeypatch.setattr(observation, "find_boundary", lambda *_: found)
    monkeypatch.setattr(observation, "step_durations", lambda *_: np.full(40, 0.5))
    watch = ObservationWatch(None, enough_s=15.0, most_s=100.0, wait_s=500.0)
    running: Any = SimpleNamespace(channel=None, elapsed_s=25.0)
    assert watch(running) is ends
    watch._next_look, running.elapsed_s = 0.0, 150.0
    assert watch(running)  # by then what it leans to counts
