"""When a run's pairs are launched side by side, and in which blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from simulated_program import observed

from torchdoctor.recording.window import Window, choose_window
from torchdoctor.records import SensorStatistics
from torchdoctor.trials.timed_launch import expected_launch_s, turns_of_trials


def chosen(step_s: float, budget_s: float = 120.0, start_s: float = 4.0, **more: Any) -> Any:
    """(blocks, seconds of two launches that follow each other)."""
    mode, drops, memory = (
        more.pop(x, y) for x, y in (("mode", "overlay"), ("cold", False), ("memory", 10**9))
    )
    known = {"median_s": step_s, "mean_s": step_s, "p10_s": step_s, "p90_s": step_s}
    steps = observed(**{**known, "warmup_steps": 10, **more})
    seen: Any = SimpleNamespace(
        steps=steps, start_s=start_s, sensors=SensorStatistics(rss_peak_bytes=memory)
    )
    recorder: Any = SimpleNamespace(drops_files=drops, sandbox=SimpleNamespace(mode=mode))
    window: Window = choose_window(steps, budget_s)
    return turns_of_trials(recorder, seen, window), 2 * expected_launch_s(seen, window)


@pytest.mark.parametrize("step_s", [0.002, 0.02, 0.1, 0.2])
@pytest.mark.parametrize("budget_s", [50.0, 120.0, 300.0])
@pytest.mark.parametrize("start_s", [2.0, 4.0, 15.0])
def test_usual_steps_take_turns_for_about_the_price_of_two_launches(
    step_s: float, budget_s: float, start_s: float
) -> None:
    turns, two_launches_s = chosen(step_s, budget_s, start_s)
    assert not isinstance(turns, str) and turns.blocks >= 4
    assert turns.pair_s <= 1.5 * two_launches_s


def test_blocks_hold_whole_epochs_where_these_are_short() -> None:
    turns, _ = chosen(0.05, cycle_steps=60)
    assert turns.block_steps == 60 and turns.blocks >= 2


def test_launches_follow_each_other_where_both_at_once_would_do_harm_or_mislead() -> None:
    assert isinstance(chosen(0.05, mode="none")[0], str)  # both would write to the user's files
    assert isinstance(chosen(0.05, cold=True)[0], str)  # one would warm the files of the other
    assert isinstance(chosen(0.05, memory=10**15)[0], str)
    assert isinstance(chosen(3.0, 50.0)[0], str)  # no time for several blocks of such steps
    assert isinstance(chosen(0.05, trainers=2)[0], str)
    assert isinstance(chosen(0.05, 300.0, cycle_steps=160)[0], str)  # of a window, but of no block
    assert isinstance(chosen(0.05, total_steps_seen=25, program_ended=True)[0], str)
