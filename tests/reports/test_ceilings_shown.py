"""Ceilings that were tried, beside the branch's share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torchdoctor.queries.outcomes import with_measured
from torchdoctor.reports.formats import rendered
from torchdoctor.reports.time_parts import BOUNDS_TITLE, bound_lines, upper_bounds
from torchdoctor.schema import (
    BRANCHES,
    Baseline,
    Ceiling,
    Diagnosis,
    Environment,
    Interval,
    Report,
    Shares,
    TriedCeiling,
    WorkloadRecord,
)

REPORT = Report(
    workload=WorkloadRecord(command=["train.py"]),
    environment=Environment(),
    diagnosis=Diagnosis(bottleneck="cpu"),
    baseline=Baseline(shares=Shares(data_loader=0.4, cpu=0.6)),
)


def tried(low: float, estimate: float, high: float, verdict: str = "gain", **more: Any) -> Report:
    one = TriedCeiling(
        ceiling="loader-batches",
        branch="data_loader",
        removes="its data loader",
        share=0.4,
        speedup=Interval(estimate=estimate, low=low, high=high),
        verdict=verdict,
    )
    return replace(REPORT, ceiling_trials=[replace(one, **more)])


def test_a_high_share_that_gives_nothing_is_hidden() -> None:
    (line,) = bound_lines(tried(0.99, 1.0, 1.01, "hidden"))
    assert "its data loader" in line and "40 %" in line and "1.00x" in line
    assert "hidden" in line


def test_a_gain_is_shown_beside_what_the_share_promises() -> None:
    (line,) = bound_lines(tried(1.3, 1.4, 1.5))
    assert "hidden" not in line
    assert "1.40x (1.30-1.50)" in line and "1.67x" in line


def test_of_figures_that_bound_nothing_the_lower_end_is_shown() -> None:
    (line,) = bound_lines(tried(1.77, 1209.0, 824670.0))
    assert "more than 1.77x" in line and "1209" not in line and "at most" not in line


def test_what_was_abandoned_says_why() -> None:
    (line,) = bound_lines(tried(1, 1, 1, "abandoned", speedup=None, reason="It raised: no."))
    assert "its data loader" in line and line.endswith("It raised: no.")


def test_a_replay_is_no_experiment() -> None:
    replayed = Ceiling(speedup=Interval(estimate=2, low=2, high=2), source="replay")
    assert bound_lines(replace(REPORT, ceilings={"data_loader": replayed})) == []


@pytest.mark.parametrize("renderer", ["terminal", "markdown", "html"])
def test_every_format_shows_it_below_the_shares_too(renderer: Any) -> None:
    report = tried(1.3, 1.4, 1.5)
    text = " ".join(rendered(report, renderer).split())
    assert BOUNDS_TITLE in text and "1.67x" in text
    bounds = upper_bounds(report)
    assert "1.40x (1.30-1.50)" in bounds and bounds in text


def test_a_part_of_a_branch_is_not_shown_as_its_ceiling() -> None:
    part = tried(1.3, 1.4, 1.5, whole=False)
    assert upper_bounds(part) == ""
    assert with_measured(dict.fromkeys(BRANCHES), part.ceiling_trials)["data_loader"] is None


def test_what_was_tried_goes_before_what_was_replayed() -> None:
    replayed = dict.fromkeys(BRANCHES) | {
        "data_loader": Ceiling(speedup=Interval(estimate=2, low=2, high=2), source="replay")
    }
    trials = tried(1.0, 1.1, 1.2).ceiling_trials
    found = with_measured(replayed, trials)
    assert found["data_loader"] == Ceiling(speedup=trials[0].speedup, source="experiment")
    assert found["cpu"] is None and set(found) == set(BRANCHES)


def test_what_was_not_tried_at_all_takes_no_section() -> None:
    untried = tried(1, 1, 1, "not-tried", speedup=None, reason="The budget left no time for it.")
    assert bound_lines(untried) == []


@pytest.mark.parametrize("verdict", ["unclear", "slower"])
def test_what_was_not_decided_does_not_look_measured(verdict: str) -> None:
    """ "without it 16.8x (0.24-1180) at most" is no measurement."""
    reason = "Its steps were others."
    report = tried(0.24, 16.8, 1180.0, verdict, reason=reason)
    (line,) = bound_lines(report)
    assert "16.8" not in line and "1180" not in line
    assert (reason in line) == (verdict == "unclear")
    assert upper_bounds(report) == ""
    assert "16.8" not in rendered(report, "terminal")
    assert with_measured(dict.fromkeys(BRANCHES), report.ceiling_trials)["data_loader"] is None
