"""Ceilings that were tried, beside the branch's share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchdoctor.records import (
    BRANCHES,
    Baseline,
    Ceiling,
    Diagnosis,
    Environment,
    Interval,
    Report,
    Shares,
    WorkloadRecord,
)
from torchdoctor.records.ceilings import with_measured
from torchdoctor.reports import html, markdown, terminal
from torchdoctor.reports.ceilings import HIDDEN, TITLE, ceiling_lines

REPORT = Report(
    workload=WorkloadRecord(command=["train.py"]),
    environment=Environment(),
    diagnosis=Diagnosis(bottleneck="cpu"),
    baseline=Baseline(shares=Shares(data_loader=0.4, cpu=0.6)),
)


def tried(low: float, estimate: float, high: float, source: str = "experiment") -> Report:
    speedup = Interval(estimate=estimate, low=low, high=high)
    return replace(REPORT, ceilings={"data_loader": Ceiling(speedup=speedup, source=source)})


def test_a_high_share_that_gives_nothing_is_hidden() -> None:
    (line,) = ceiling_lines(tried(0.99, 1.0, 1.01))
    assert line.startswith("waiting for data takes 40 % of the step; without it: 1.00x")
    assert line.endswith(HIDDEN)


def test_a_gain_is_shown_beside_what_the_share_promises() -> None:
    (line,) = ceiling_lines(tried(1.3, 1.4, 1.5))
    assert HIDDEN not in line and "(1.67x if nothing else used that time)" in line


def test_an_interval_that_leaves_a_gain_open_is_not_called_hidden() -> None:
    (line,) = ceiling_lines(tried(0.95, 1.02, 1.10))
    assert HIDDEN not in line


def test_a_replay_is_no_experiment() -> None:
    assert ceiling_lines(tried(1.3, 1.4, 1.5, source="replay")) == []


@pytest.mark.parametrize("renderer", [terminal, markdown, html])
def test_every_format_shows_it(renderer) -> None:
    text = renderer.render(tried(1.3, 1.4, 1.5))
    assert TITLE in text and "if nothing else used that time" in " ".join(text.split())


def test_what_was_tried_goes_before_what_was_replayed() -> None:
    replayed = dict.fromkeys(BRANCHES) | {
        "data_loader": Ceiling(speedup=Interval(estimate=2, low=2, high=2), source="replay")
    }
    one = Interval(estimate=1.1, low=1.0, high=1.2)
    found = with_measured(replayed, {"data_loader": one, "cpu": None})
    assert found["data_loader"] == Ceiling(speedup=one, source="experiment")
    assert found["cpu"] is None and set(found) == set(BRANCHES)
