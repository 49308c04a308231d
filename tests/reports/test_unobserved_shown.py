"""What the measured steps do not show is told on the first screen and in the details."""

from __future__ import annotations

from dataclasses import replace

from samples import compute_bound

from torchdoctor.reports import steps_found
from torchdoctor.reports.details import details
from torchdoctor.reports.first_screen import screen
from torchdoctor.schema import Report, UnobservedPhase


def with_phase(steps_between: int | None) -> Report:
    report = compute_bound()
    assert report.steps is not None
    phase = UnobservedPhase(
        kind="rollout", seconds=2.0, times=2, calls=400, steps_between=steps_between
    )
    steps = replace(report.steps, mean_s=0.01, unobserved=[phase])
    return replace(report, steps=steps)


def test_a_phase_is_told_on_the_first_screen_and_in_the_details() -> None:
    report = with_phase(None)
    (sentence,) = steps_found.unobserved(report)
    assert "2.00 s" in sentence and "400" in sentence
    for sections in (screen(report, "runs"), details(report)):
        assert "rollout" in str(sections)
    assert steps_found.unobserved(compute_bound()) == []


def test_its_share_of_the_time_is_told_where_it_is_known() -> None:
    (sentence,) = steps_found.unobserved(with_phase(600))
    assert "25%" in sentence and "600 steps" in sentence
