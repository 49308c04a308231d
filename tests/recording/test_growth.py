"""A step that grows with its number is told from a busy machine, and steps are compared alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.bench.block_plan import choose_turns
from torchdoctor.observe.growth import growth_of
from torchdoctor.observe.window import Window
from torchdoctor.queries.growth import growing_line, times_after_an_hour, times_at_end
from torchdoctor.schema import StepGrowth, process

NAMES = ("other", "backward")
NUMBERS = np.arange(120)
WINDOW = Window(warmup_steps=10, measure_steps=50, max_window_s=60.0)
GROWTH = StepGrowth(slope_s=1e-4, first_s=0.01, last_s=0.02, phase="other")


def phases(other: np.ndarray, backward: np.ndarray, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(1.0, 0.05, (2, len(other)))
    return np.stack([other * noise[0], backward * noise[1]], axis=1)


def test_a_phase_that_grows_is_told_with_its_slope() -> None:
    growth = growth_of(phases(0.002 + 1e-4 * NUMBERS, np.full(120, 0.01)), NAMES)
    assert growth is not None
    assert growth.phase == "other"
    assert growth.slope_s == pytest.approx(1e-4, rel=0.15)
    assert growth.first_s == pytest.approx(0.012, rel=0.15)
    assert growth.anew_every is None


def test_other_load_makes_all_phases_longer_and_is_no_growth() -> None:
    load = np.linspace(1.0, 3.0, 120)
    assert growth_of(phases(0.01 * load, 0.02 * load), NAMES) is None


def test_growth_shows_while_other_load_goes_away() -> None:
    """Its times fall, and its part of the step rises: only the part is no growth by itself."""
    load = np.linspace(1.5, 1.0, 120)
    grown = (0.004 + 2e-4 * NUMBERS) * load
    growth = growth_of(phases(grown, 0.01 * load), NAMES)
    assert growth is not None and growth.phase == "other"


def test_a_rest_that_warms_up_is_no_growth_of_what_stays() -> None:
    warming = 0.01 * np.linspace(3, 1, 120)
    grown = [growth_of(phases(np.full(120, 0.01), warming, seed), NAMES) for seed in range(200)]
    assert sum(growth is not None for growth in grown) <= 5


def test_a_steady_step_of_which_some_are_long_does_not_grow() -> None:
    other = np.full(120, 0.01)
    other[::17] *= 20
    assert growth_of(phases(other, np.full(120, 0.01)), NAMES) is None
    assert growth_of(phases(NUMBERS[:20] * 1e-3, np.full(20, 0.01)), NAMES) is None  # too few


def test_what_begins_anew_with_each_epoch_is_folded() -> None:
    since = NUMBERS % 30
    growth = growth_of(phases(0.002 + 3e-4 * since, np.full(120, 0.01)), NAMES, since)
    assert growth is not None
    assert growth.anew_every == 30
    assert growth.slope_s == pytest.approx(3e-4, rel=0.2)


def test_an_hour_of_growth_is_reckoned_in_time_and_not_in_steps() -> None:
    """Steps become fewer while they become longer: 0.1 ms each step is 42x, not 1,800x."""
    assert times_after_an_hour(GROWTH) == pytest.approx(42.4, abs=0.1)


def test_the_end_of_an_epoch_is_told_where_its_length_is_known() -> None:
    loader = {"ident": 0, "batches": 60, "dataset_length": 4000, "batch_size": 10}
    seen = recording(process(loaders=[loader]))
    at_end, steps = times_at_end(seen, GROWTH)
    assert steps == 400
    assert at_end == pytest.approx((0.009 + 0.04) / 0.009)
    assert times_at_end(recording(), GROWTH) == (None, None)


def test_the_line_is_that_of_the_phase_that_grows() -> None:
    def row(line: int, phase: str, count: int) -> dict[str, object]:
        where = {"file": "/w/train.py", "line": line, "function": f"f{line}"}
        return {"location": where, "phase": phase, "count": count}

    grown = {"slope_s": 1e-4, "first_s": 0.01, "last_s": 0.02, "phase": "other"}
    stacks = [row(5, "backward", 90), row(17, "after_step", 30), row(18, "after_step", 2)]
    seen = recording({"steps": {"growth": grown}, **process(stacks=stacks)})
    line = growing_line(seen)
    assert line is not None and line.line == 17
    (finding,) = catalogue.checks()["growing-step"].findings(seen)
    assert finding.location == line


def test_both_sides_of_a_pair_make_the_same_steps_of_a_growing_program() -> None:
    """A faster side made more steps in its turns, later and longer ones, and looked slower."""
    steps = recording().steps
    assert steps is not None
    even = choose_turns(steps, WINDOW, 1.0, 60.0)
    growing = choose_turns(replace(steps, growth=GROWTH), WINDOW, 1.0, 60.0)
    assert even is not None and even.least_s > 0
    assert growing is not None and growing.least_s == 0
