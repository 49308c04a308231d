"""A profiler window at the end of the observing launch is in no figure of the observed steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from observed_programs import recorder_of
from partial_recordings import recording

from torchdoctor.bench.record import Recorder
from torchdoctor.observe.events import read_channel, read_observed
from torchdoctor.observe.joined_window import JoinedWindow
from torchdoctor.observe.observation import Observation
from torchdoctor.observe.window import ProfilerWindow
from torchdoctor.probe import step_log
from torchdoctor.runs import run as run_story
from torchdoctor.schema import StepStatistics
from torchdoctor.schema.errors import ProgramFailed

pytestmark = pytest.mark.slow
WINDOW = ProfilerWindow(warmup_steps=1, profiled_steps=2, analysed_steps=3)
# It says after each step how Python switches between threads, which the observing changes.
PROGRAM = """
import itertools, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
WHERE
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4)

def learn(x):
    time.sleep(0.01)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    with open("switched.txt", "a") as file:
        file.write("%r\\n" % sys.getswitchinterval())

for epoch in range(1000000):
    LOOP
"""
LOOPS = {
    "loader": "for x, in loader: learn(x)",
    "optimizer": "learn(torch.randn(4, 4))",
    "backward": "learn(torch.randn(4, 4))",
}


def _observed(
    recorder: Recorder, window: ProfilerWindow | None = WINDOW, step_on: str | None = None
) -> tuple[Observation, list[tuple[StepStatistics, float]]]:
    """An observation that is asked for a window; what the choice of it was told."""
    told = []

    def choose(steps: StepStatistics, start_s: float) -> ProfilerWindow | None:
        told.append((steps, start_s))
        return window

    seen = recorder.observe(step_on, enough_s=0.5, most_s=100.0, joined=JoinedWindow(choose))
    assert [text for process in seen.processes for text in process.probe_errors] == []
    return seen, told


@pytest.mark.parametrize("kind", LOOPS)
def test_the_window_follows_the_observed_steps_and_is_in_none_of_them(
    tmp_path: Path, kind: str
) -> None:
    program = PROGRAM.replace("LOOP", LOOPS[kind]).replace("WHERE", "")
    recorder = recorder_of(program, tmp_path)
    seen, [(steps, start_s)] = _observed(recorder, step_on=kind)
    assert seen.steps.boundary.kind == kind and seen.failure is None
    assert not seen.steps.program_ended
    assert steps.total_steps_seen <= seen.steps.total_steps_seen
    assert start_s == pytest.approx(seen.start_s, abs=1e-3)

    profiled = recorder.joined_window()
    assert [trace.statistics.steps for trace in profiled.traces] == [2]
    processes = profiled.added_to(seen.processes, profiled.traces[0].statistics.path)
    assert processes[0].analysed_steps == 3
    assert seen.processes[0].analysed_steps == 0

    [channel] = tmp_path.glob("run/launches/*/channel")
    [whole], [before] = (read(channel)[0].values() for read in (read_channel, read_observed))
    [begins] = whole.at(step_log.OBSERVED)
    assert len(before) == begins and not before.at(step_log.BOUNDARY).size
    after = len(whole.at(step_log.BOUNDARY))
    assert after >= 2 + 2 + 3, "the profiler's own warm-up, its steps, and those analysed"
    updates = before.at(step_log.OPTIMIZER_END)
    assert len(updates) - 3 <= seen.steps.total_steps_seen <= len(updates)
    switched = [float(x) for x in (tmp_path / "program" / "switched.txt").read_text().split()]
    assert min(switched) < 1e-4 and switched[-2] == pytest.approx(0.005)


INFERS = """
import time, torch
model = torch.nn.Linear(4, 1).eval()
while True:
    time.sleep(0.01)
    CALL
"""


def test_calls_of_a_program_that_infers_are_profiled_too(tmp_path: Path) -> None:
    """The window never began, and half a minute was waited for it."""
    program = INFERS.replace("CALL", "model(torch.randn(4, 4))")
    recorder = recorder_of(program, tmp_path)
    seen, _ = _observed(recorder)
    assert seen.steps.boundary.kind == "forward"
    [trace] = recorder.joined_window().traces
    assert trace.statistics.steps == WINDOW.profiled_steps


def test_a_window_that_does_not_begin_is_not_waited_for(tmp_path: Path) -> None:
    """The window itself may take a minute; that the next step begins it shows at once."""
    steps: Any = recording({"steps": {"mean_s": 1.0}}).steps
    window = ProfilerWindow(warmup_steps=1, profiled_steps=40, analysed_steps=6)
    running: Any = SimpleNamespace(channel=tmp_path, elapsed_s=20.0)
    joined = JoinedWindow(lambda steps, start_s: window)
    assert joined.ask(running, 1, steps.boundary, steps, 2.0)
    assert not joined.is_over(running)
    running.elapsed_s = 40.0
    assert joined.is_over(running)
    (tmp_path / "observed-1.json").touch()
    assert not joined.is_over(running)


def test_where_no_window_is_chosen_the_launch_ends_as_before(tmp_path: Path) -> None:
    program = PROGRAM.replace("LOOP", LOOPS["loader"]).replace("WHERE", "")
    recorder = recorder_of(program, tmp_path)
    _observed(recorder, None)
    [channel] = tmp_path.glob("run/launches/*/channel")
    [log] = read_channel(channel)[0].values()
    assert not log.at(step_log.OBSERVED).size
    with pytest.raises(ProgramFailed):
        recorder.joined_window()


def test_a_window_that_kills_the_program_costs_nothing_observed(tmp_path: Path) -> None:
    dies = "import os; torch.profiler.profile.start = lambda self: os.kill(os.getpid(), 11)"
    program = PROGRAM.replace("LOOP", LOOPS["loader"]).replace("WHERE", dies)
    recorder = recorder_of(program, tmp_path)
    seen, _ = _observed(recorder)
    assert seen.failure is None and not seen.steps.program_ended
    assert seen.steps.total_steps_seen >= 3
    with pytest.raises(ProgramFailed):
        recorder.joined_window()


@pytest.mark.parametrize("has_gpu, has_device", [(True, False), (True, True), (False, False)])
def test_without_the_kernels_of_a_gpu_a_launch_of_its_own_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, has_device: bool
) -> None:
    """The observed launch is a fork, in which no profiler of a real GPU was ever started."""
    joined, own = SimpleNamespace(has_device=has_device), object()
    steps: Any = recording({"steps": {"mean_s": 0.1}}).steps
    boundary = SimpleNamespace(boundary=steps.boundary)
    profiles = SimpleNamespace(joined_window=lambda: joined, profile=lambda *_, **__: own)
    run: Any = SimpleNamespace(
        profiled_within=True,
        recorder=profiles,
        recording=SimpleNamespace(has_gpu=has_gpu),
        _attempted=lambda profile: profile(),
        _profile_most_s=lambda start_s: 60.0,
        _relay=lambda event: None,
    )
    seen: Any = SimpleNamespace(steps=steps, start_s=1.0, steps_found=boundary)
    monkeypatch.setattr(run_story, "stays_cold", lambda recording: False)
    expected = own if has_gpu and not has_device else joined
    assert run_story._Checkup._profile(run, seen) is expected
    assert run.profiled_within == (expected is joined)


def test_a_program_that_ends_within_the_window_keeps_what_was_profiled(tmp_path: Path) -> None:
    """It goes on for three steps once the window is asked for."""
    loop = (
        "import glob, os, json\n"
        "    plan = json.load(open(os.environ['TORCHDOCTOR_PLAN']))\n"
        "    if glob.glob(plan['channel'] + '/observed-*'): left = globals().get('left', 5) - 1\n"
        "    if globals().get('left') == 0: break\n"
        "    learn(torch.randn(4, 4))"
    )
    recorder = recorder_of(PROGRAM.replace("LOOP", loop).replace("WHERE", ""), tmp_path)
    seen, _ = _observed(
        recorder, ProfilerWindow(warmup_steps=1, profiled_steps=40, analysed_steps=0)
    )
    assert seen.failure is None and seen.steps.program_ended
    assert recorder.joined_window().traces[0].statistics.steps >= 1
