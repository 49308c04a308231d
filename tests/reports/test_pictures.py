"""The figures behind the pictures of a page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from run_folders import OBSERVED_MS, OBSERVED_STEPS, report_with_run
from samples import SAMPLES

from torchdoctor.reports.formats import rendered
from torchdoctor.reports.pictures import pictures, thinned


def test_thinning_keeps_every_extreme_and_what_is_marked() -> None:
    values = np.full(100_000, 0.01)
    values[[17, 54_321, 99_999]] = 3.0, 0.001, 2.0
    marked = np.arange(0, 100_000, 7)
    kept = thinned(values, 4000, [marked])
    assert {17, 54_321, 99_999} <= set(kept.tolist())
    assert len(kept) < 5000
    assert np.isin(kept, marked).sum() > 400
    assert (np.diff(kept) > 0).all()


def test_thinned_steps_do_not_look_like_two_kinds() -> None:
    """The extremes of each stretch alone drew two bands, with no step at the median."""
    values = np.random.default_rng(0).normal(0.1, 0.01, 100_000)
    kept = values[thinned(values, 4000)]
    assert (np.abs(kept - 0.1) < 0.01).mean() > 0.3


def test_a_run_shows_its_own_steps_on_the_clock_of_its_sensors(tmp_path) -> None:
    drawn = {x.key: x for x in pictures(report_with_run(tmp_path))}
    steps, resources = drawn["steps"].drawn, drawn["resources"].drawn
    assert len(steps["y"]) == OBSERVED_STEPS
    assert set(steps["y"]) == {float(OBSERVED_MS)}
    assert sum(steps["counts"]) == OBSERVED_STEPS
    assert steps["edges"][0] > 0, "a histogram of steps of one length has no negative times"
    assert f"{OBSERVED_STEPS} steps is {OBSERVED_MS} ms" in drawn["steps"].caption
    assert resources["memory/process_tree_GB"]["x"][0] == pytest.approx(0.0, abs=0.2)
    assert set(resources["network/MB_per_s"]["y"]) == {3.0}
    assert drawn["ranks"].drawn is None


@pytest.mark.parametrize("name", SAMPLES)
def test_each_picture_has_a_caption_or_a_reason(name) -> None:
    for picture in pictures(SAMPLES[name]()):
        text = picture.missing if picture.drawn is None else picture.caption
        assert text.endswith("."), picture.key


def test_ranks_without_a_profiler_window_are_no_single_process() -> None:
    report = SAMPLES["loader_bound"]()
    assert report.steps is not None
    for trainers, reason in (
        (1, "One process trained"),
        (2, "not compared: that needs"),
    ):
        told = replace(report, steps=replace(report.steps, trainers=trainers), ranks=[])
        (missing,) = (picture.missing for picture in pictures(told) if picture.key == "ranks")
        assert reason in missing


def test_a_page_is_small_and_loads_nothing() -> None:
    page = rendered(SAMPLES["loader_bound"](), "html")
    assert len(page.encode()) < 2_000_000
    assert "default-src 'none'" in page
    assert "--details" not in page.partition('<div id="details">')[0], "they stand below"
