"""Two launches side by side: only one runs at a time, and what one does is measured as its own."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from torchdoctor.bench import turns
from torchdoctor.bench.block_plan import TurnBlocks, choose_turns
from torchdoctor.bench.record import Recorder
from torchdoctor.bench.turns import Start, take_turns
from torchdoctor.launch.launch import PROBE
from torchdoctor.launch.launch_spec import LaunchSpec
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.observe.window import Window
from torchdoctor.schema import Boundary, StepStatistics, Workload
from torchdoctor.schema.errors import UsageError

TURNS = TurnBlocks(
    warmup_steps=3, block_steps=10, discard_steps=2, blocks=4, step_s=0.1, setup_s=1.4
)
BOUNDARY = Boundary(kind="backward")
ORDER = [0, 1, 1, 0, 1, 0, 0, 1]
# An optimizer of torch's costs each launch a second: it imports torch._dynamo.
TRAIN = """
FIRST
import time, torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100000
    def __getitem__(self, index):
        return torch.zeros(4)
model = torch.nn.Linear(4, 1)
loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1)
for number, x in enumerate(loader):
    time.sleep(PAUSE)
    model(x).sum().backward()
    EXTRA
"""


def recorder(
    folder: Path, sandbox: Sandbox, pause: float, extra: str = "pass", first: str = "pass"
) -> Recorder:
    folder.mkdir()
    source = TRAIN.replace("PAUSE", str(pause)).replace("EXTRA", extra).replace("FIRST", first)
    (folder / "train.py").write_text(source)
    workload = Workload(command=[sys.executable, "train.py"], cwd=str(folder))
    return Recorder(workload, folder / "out", sandbox, 0, None, 60.0)


TURN = LaunchSpec(name="turn", boundary=BOUNDARY, plan=TURNS.plan)


def begin(recorder: Recorder, least_s: float = 0.0) -> Start:
    spec = replace(TURN, plan=replace(TURNS, least_s=least_s).plan)
    return lambda poll: recorder.time(spec, 120.0, poll)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["overlay", "landlock"])
def test_only_one_runs_at_a_time(tmp_path: Path, mode: str) -> None:
    try:
        sandbox = Sandbox.choose(mode, tmp_path)
    except UsageError as error:
        pytest.skip(str(error))
    with sandbox:
        fast = recorder(tmp_path / "fast", sandbox, 0.01)
        slow = recorder(tmp_path / "slow", sandbox, 0.03)
        starts = begin(fast, least_s=0.25), begin(slow, least_s=0.25)
        first, second = take_turns(starts, ORDER, 1.0, time.monotonic() + 300)
    assert [len(x.blocks) for x in (first, second)] == [4, 4], (first, second)
    assert first.ended == second.ended == "measured"
    assert first.peak_memory_bytes
    # The blocks follow each other in the order wanted, and never overlap: one clock for both.
    played = sorted(
        (block.began_s, block.ended_s, side)
        for side, taken in enumerate((first, second))
        for block in taken.blocks
    )
    assert [side for _, _, side in played] == ORDER
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(played))
    assert [block.round for block in first.blocks] == [1, 2, 3, 4]
    # The faster one makes as many more steps as its block needs to be measured.
    assert all(len(x.step_s) % 10 == 0 for x in first.blocks + second.blocks)
    assert all(sum(x.step_s) >= 0.24 for x in first.blocks + second.blocks)
    for taken, least in ((first, 0.01), (second, 0.03)):
        assert all(step >= least for step in taken.step_s)
        # One that stood still within a step would show it: no step holds the other's block.
        assert taken.samples == 2 * len(taken.step_s)


@pytest.mark.slow
def test_one_that_crashes_ends_both_and_keeps_whole_blocks(tmp_path: Path) -> None:
    with Sandbox.choose("auto", tmp_path) as sandbox:
        good = recorder(tmp_path / "good", sandbox, 0.01)
        bad = recorder(tmp_path / "bad", sandbox, 0.01, "if number == 30: raise ValueError('no')")
        first, second = take_turns((begin(good), begin(bad)), ORDER, 1.0, time.monotonic() + 300)
    assert 1 <= len(second.blocks) <= 2
    assert len(first.blocks) >= 1
    # Whole blocks, yet no launch that went well; the other one was only ended.
    assert (second.ended, second.stopped) == ("failed", False)
    assert second.why is not None and not second.late
    assert second.why.values["last_line"] == "ValueError: no"
    assert (first.ended, first.stopped) == ("measured", True)
    with Sandbox.choose("auto", tmp_path) as sandbox:
        good = recorder(tmp_path / "good2", sandbox, 0.01)
        crash = "raise ValueError('no memory left')"
        bad = recorder(tmp_path / "bad2", sandbox, 0.01, first=crash)
        first, second = take_turns((begin(good), begin(bad)), ORDER, 1.0, time.monotonic() + 300)
    assert (second.ended, second.blocks) == ("failed", [])
    assert second.why is not None and "no memory left" in second.why.values["last_line"]
    assert first.blocks == [] and first.stopped


@pytest.mark.slow
def test_one_that_never_ends_its_turn_is_late_and_the_other_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock after the first blocks was a launch that had measured them, and nothing else."""
    monkeypatch.setattr(turns, "_BLOCKED_S", 3.0)
    with Sandbox.choose("auto", tmp_path) as sandbox:
        good = recorder(tmp_path / "good", sandbox, 0.01)
        bad = recorder(tmp_path / "bad", sandbox, 0.01, "if number == 22: time.sleep(1000)")
        first, second = take_turns((begin(good), begin(bad)), ORDER, 0.1, time.monotonic() + 300)
    assert (first.late, second.late) == (False, True)
    assert first.stopped and len(second.blocks) == 1


def steps(step_s: float, **more) -> StepStatistics:
    found = StepStatistics(
        boundary=BOUNDARY, steps=50, warmup_steps=10, median_s=step_s,
        mean_s=step_s, p10_s=step_s, p90_s=step_s, total_steps_seen=1000,
    )  # fmt: skip
    return replace(found, **more)


def test_blocks_are_as_many_as_starting_is_long() -> None:
    window = Window(warmup_steps=10, measure_steps=100, max_window_s=20.0)

    def chosen(step_s: float, start_s: float = 4.0, most_s: float = 80.0, steps_wanted=None, **x):
        return choose_turns(steps(step_s, **x), window, start_s, most_s, steps_wanted)

    usual = chosen(0.01)
    assert usual.block_steps == 40
    assert 6 <= usual.blocks <= 16 and usual.blocks % 2 == 0
    assert chosen(0.01, start_s=60.0, most_s=600.0).blocks == 16
    assert chosen(0.01, most_s=12.0).blocks < usual.blocks
    assert chosen(0.01, steps_wanted=20).block_steps == 10
    assert chosen(0.1, two_modes=True, cycle_steps=4).block_steps % 4 == 0
    assert chosen(0.1, two_modes=True) is not None  # by the mean, or others' load
    assert chosen(0.1, two_modes=True, cycle_steps=1000) is None
    assert chosen(0.1, trainers=2) is None
    assert chosen(0.1, program_ended=True, total_steps_seen=20) is None


def test_what_is_said_at_each_wait_is_one_number(tmp_path: Path) -> None:
    """A process that writes a torn file must not count as waiting."""
    from torchdoctor.bench.turns import _Player

    class Running:
        channel = tmp_path

    player = _Player(lambda poll: None, __import__("threading").Event())
    player.running = Running()
    assert not player.waits()
    (tmp_path / "turn.json").write_text("{")
    assert not player.waits()
    (tmp_path / "turn.json").write_text(json.dumps({"turn": 0, "pid": 1}))
    assert player.waits()
    player.turns = 1
    assert not player.waits()


def test_loader_workers_stand_still_from_the_blocks_end_on() -> None:
    """They filled their queues until they were told from outside: a gift to each next block."""
    source = (
        "import multiprocessing, psutil, sys, time\n"
        f"sys.path.insert(0, {str(PROBE.parent.parent)!r})\n"
        "from torchdoctor.probe.fixkit.turns import _stop_children\n"
        "worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "worker.start()\n"
        "_stop_children()\n"
        "until = time.monotonic() + 20\n"
        "while psutil.Process(worker.pid).status() != 'stopped' and time.monotonic() < until:\n"
        "    time.sleep(0.01)\n"
        "print(psutil.Process(worker.pid).status())\n"
        "worker.kill()\n"
        "worker.join()\n"
        "_stop_children()\n"  # who has ended is in nobody's way
    )
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("stopped\n", "")
