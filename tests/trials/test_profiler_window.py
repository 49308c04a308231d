"""Which profiler window fits into the time that there is for it."""

from __future__ import annotations

import pytest
from simulated_program import observed

from torchdoctor.observe.window import (
    PROFILER_WINDOWS,
    choose_joined_window,
    choose_profiler_window,
)


def test_a_short_budget_gets_a_smaller_window_and_not_none() -> None:
    """It was left out: 12 s were too much of 30 s, and the operators stayed unknown."""
    steps = observed(mean_s=0.02, median_s=0.02)
    whole = choose_profiler_window(steps, 6.0, 60.0)
    assert whole == PROFILER_WINDOWS[0]
    short = choose_profiler_window(steps, 6.0, 9.0)
    assert short is not None and short.profiled_steps >= 2
    assert short.launch_s(steps, 6.0) <= 9.0 < whole.launch_s(steps, 6.0)
    assert choose_profiler_window(steps, 6.0, 6.5) is None


@pytest.mark.parametrize("step_s", [0.001, 0.3, 2.0, 8.0])
@pytest.mark.parametrize("most_s", [5.0, 15.0, 40.0, 75.0])
def test_what_is_chosen_fits_and_nothing_larger_does(step_s: float, most_s: float) -> None:
    steps = observed(mean_s=step_s, median_s=step_s)
    chosen = choose_profiler_window(steps, 2.0, most_s)
    if chosen is None:
        assert PROFILER_WINDOWS[-1].launch_s(steps, 2.0) > most_s
        return
    assert chosen.profiled_steps >= 1 and chosen.launch_s(steps, 2.0) <= most_s
    before = PROFILER_WINDOWS[: PROFILER_WINDOWS.index(chosen)]
    if step_s > 1.0:  # ten to warm up and four profiled would take what the trials need
        assert chosen.warmup_steps <= 3 and chosen.profiled_steps <= 2
        before = tuple(x for x in before if x.warmup_steps <= 3 and x.profiled_steps <= 2)
    assert all(x.launch_s(steps, 2.0) > most_s for x in before)


@pytest.mark.parametrize("steps_in_all", [3, 6, 12, 20])
def test_the_window_of_a_program_that_ends_lies_before_its_end(steps_in_all: int) -> None:
    steps = observed(mean_s=0.1, median_s=0.1, program_ended=True, total_steps_seen=steps_in_all)
    chosen = choose_profiler_window(steps, 1.0, 100.0)
    assert chosen is not None
    assert chosen.warmup_steps == 0 or chosen.warmup_steps + 2 < steps_in_all


# Seconds of a start and of a step, of the budget, and for the window.
DEAR = [(20.0, 0.7, 100.0, 15.0), (60.0, 2.0, 300.0, 75.0), (90.0, 2.0, 300.0, 25.0)]
CHEAP = [(3.0, 0.1, 120.0, 30.0), (2.5, 0.02, 60.0, 15.0)]


@pytest.mark.parametrize("start_s, step_s, budget_s, most_s", DEAR)
def test_where_another_start_is_dear_the_window_follows_the_observed_steps(
    start_s: float, step_s: float, budget_s: float, most_s: float
) -> None:
    steps = observed(mean_s=step_s, median_s=step_s)
    own = choose_profiler_window(steps, start_s, most_s)
    joined = choose_joined_window(steps, start_s, most_s, budget_s)
    assert joined is not None and joined.launch_s(steps, 0.0) <= most_s
    assert own is None or joined.profiled_steps >= own.profiled_steps


@pytest.mark.parametrize("start_s, step_s, budget_s, most_s", CHEAP)
def test_a_start_that_costs_little_leaves_the_window_a_launch_of_its_own(
    start_s: float, step_s: float, budget_s: float, most_s: float
) -> None:
    steps = observed(mean_s=step_s, median_s=step_s)
    assert choose_joined_window(steps, start_s, most_s, budget_s) is None
    assert choose_profiler_window(steps, start_s, most_s) is not None


def test_no_window_is_asked_for_that_no_time_is_left_for() -> None:
    steps = observed(mean_s=8.0, median_s=8.0)
    assert choose_joined_window(steps, 60.0, 10.0, 120.0) is None
