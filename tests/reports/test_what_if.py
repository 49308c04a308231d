"""Replays in reports: lines, ceilings, and what is not believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import diagnosed_only

from torchdoctor.queries.outcomes import replay_ceilings
from torchdoctor.reports.formats import rendered
from torchdoctor.reports.time_parts import REPLAY_TITLE, replay_lines
from torchdoctor.schema import BranchReplay, Evidence, Report, Shares, TraceStatistics, WhatIf
from torchdoctor.schema.figures import SHARE_LABELS
from torchdoctor.schema.record_files import decode_report, encode

DOUBT = Evidence(fact="said", sentence="Something does not hold.")
REPLAYED = WhatIf(
    steps=6,
    of_steps=8,
    measured_s=0.1776,
    replayed_s=0.1771,
    explained_s=0.1771,
    branches={
        "data_loader": BranchReplay(step_s=0.118, lowest_s=0.118),
        "memcpy": BranchReplay(step_s=0.1765, lowest_s=0.1765),
        "communication": None,
        "gpu": BranchReplay(step_s=0.14, lowest_s=0.07),
        "cpu": BranchReplay(step_s=0.114, lowest_s=0.114),
    },
    doubts=[DOUBT],
)


def reported(found: WhatIf | None, doubts: list[str] | None = None) -> Report:
    trace = TraceStatistics(path="trace.json", steps=8, what_if=found)
    return replace(diagnosed_only(), trace=trace, doubts=doubts or [])


def test_a_line_for_each_branch_and_one_for_the_replay_as_it_is() -> None:
    *branches, as_it_is, doubt = replay_lines(reported(REPLAYED))
    gains = [
        ("cpu", "114 ms (1.55x)"), ("data_loader", "118 ms (1.50x)"), ("gpu", "140 ms (1.26x)")
    ]  # fmt: skip
    assert len(branches) == len(gains)
    for line, (branch, gain) in zip(branches, gains, strict=True):
        assert SHARE_LABELS[branch] in line and line.endswith(gain)
    assert all(figure in as_it_is for figure in ("177 ms", "178 ms", "0.3 %", "6 of 8"))
    assert doubt == DOUBT.sentence


def test_every_format_shows_it_as_a_replay() -> None:
    report = reported(REPLAYED)
    for text in (
        rendered(report, "terminal"),
        rendered(report, "markdown"),
        rendered(report, "html"),
    ):
        assert REPLAY_TITLE in text
        assert "118 ms (1.50x)" in text
    assert "replay" not in rendered(reported(None), "terminal")
    assert decode_report(encode(report)).trace == report.trace


@pytest.mark.parametrize(
    ("step_s", "waiting", "shown"),
    [(0.42, 0.75, True), (0.7, 0.75, False), (0.25, 0.75, False), (0.42, 0.6, False)],
)
def test_a_replay_of_steps_unlike_the_real_ones_is_not_shown(
    step_s: float, waiting: float, shown: bool
) -> None:
    """The real step takes 419 ms and waits for data 78 % of it: 1.5x waits less, or more."""
    report = reported(REPLAYED)
    assert report.trace is not None
    trace = replace(report.trace, step_s=step_s, shares=Shares(data_loader=waiting))
    report = replace(report, trace=trace)
    for text in (
        rendered(report, "terminal"),
        rendered(report, "markdown"),
        rendered(report, "html"),
    ):
        assert ("118 ms (1.50x)" in text) == shown
    on_gpu = replace(report, trace=replace(trace, has_device=True))
    assert replay_lines(on_gpu) != []


def test_a_replay_that_misses_the_step_shows_no_gains() -> None:
    wrong = replace(REPLAYED, replayed_s=0.15, doubts=[])
    [as_it_is] = replay_lines(reported(wrong))
    assert all(figure in as_it_is for figure in ("150 ms", "178 ms", "15.5 %"))
    assert set(replay_ceilings(wrong).values()) == {None}


def test_a_doubt_of_the_report_is_not_said_twice() -> None:
    report = reported(REPLAYED, [doubt.sentence for doubt in REPLAYED.doubts])
    assert DOUBT.sentence not in replay_lines(report)


def test_ceilings_allow_for_the_error_and_for_unknown_waits() -> None:
    found = replay_ceilings(REPLAYED)
    loader, gpu = found["data_loader"], found["gpu"]
    assert loader is not None
    assert loader.source == "replay"
    assert loader.speedup.low < loader.speedup.estimate < loader.speedup.high
    assert loader.speedup.estimate == pytest.approx(0.1771 / 0.118)
    assert loader.speedup.high == pytest.approx(loader.speedup.estimate, rel=0.005)
    assert gpu is not None
    assert gpu.speedup.high > 2.5
    assert found["communication"] is None
    assert found["other"] is None


def test_no_ceilings_without_a_trace_or_steps() -> None:
    assert set(replay_ceilings(None).values()) == {None}
    assert set(replay_ceilings(replace(REPLAYED, steps=0)).values()) == {None}
