"""The figures of the untouched program come from one set of launches, and multiply up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from partial_recordings import recording

from torchdoctor.checkup.notes import report_notes
from torchdoctor.checkup.report_assembly import RunResults, assemble
from torchdoctor.checkup.run_settings import RunSettings
from torchdoctor.trials.outcome import TrialResults
from torchdoctor.words import (
    Diagnosis,
    Interval,
    LaunchTiming,
    Recommendation,
    Report,
)

OBSERVED = {"steps": {"samples_per_step": 32.0, "median_s": 0.010, "mean_s": 0.0104}}


def doubts(*of: Any) -> list[str]:
    return [note.sentence for note in report_notes(*of)]


def report(baselines: list[list[float]]) -> Report:
    timings = [
        LaunchTiming(ended="measured", step_s=s, samples=32.0 * len(s), window_s=sum(s))
        for s in baselines
    ]
    trials = TrialResults(
        trials=[],
        noise_floor=None,
        recommendation=Recommendation(),
        baselines=timings,
        launches_s=[sum(s) / len(s) / 32 for s in baselines],
        decided_by="mean",
        per_step=True,
    )
    return assemble(
        RunResults(
            recording=recording(OBSERVED),
            diagnosis=Diagnosis(bottleneck="none"),
            trials=trials if baselines else None,
            settings=RunSettings(),
        )
    )


@pytest.mark.parametrize(
    ("baselines", "deciding"),
    [
        ([], 0.010),
        ([[0.020] * 9 + [0.021], [0.020] * 10], 0.020),
        # Every fifth step takes far longer: the median hides it, so the mean is the figure.
        ([[0.010, 0.010, 0.010, 0.010, 0.060]] * 2, 0.020),
    ],
    ids=["observed only", "timed launches", "two kinds of steps"],
)
def test_samples_per_second_is_the_batch_over_the_step_time(
    baselines: list[list[float]], deciding: float
) -> None:
    found = report(baselines).baseline
    assert found.step_time_s is not None
    assert found.step_time_s.deciding == pytest.approx(deciding)
    assert found.samples_per_s == pytest.approx(32 / deciding)
    assert len(found.launches_s) == len(baselines)
    # A gate against this report compares the same of its own launches.
    expected = ("mean", "step") if baselines else (None, None)
    assert (found.launches_by, found.launches_per) == expected


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        ((0.48, 0.10, 2.3), "differed from itself by 0.48x: smaller differences cannot be"),
        ((1.31, 0.90, 1.91), "differed from itself by 1.31x"),
        ((1.05, 0.95, 1.16), ""),
    ],
)
def test_a_program_unlike_itself_is_doubted(noise: tuple[float, float, float], said: str) -> None:
    """Figures beside it would be taken for those of fixes."""
    estimate, low, high = noise
    trials = TrialResults(
        trials=[],
        noise_floor=Interval(estimate=estimate, low=low, high=high),
        recommendation=Recommendation(),
    )
    sentences = " ".join(doubts(recording(OBSERVED), trials))
    assert said in sentences
    assert ("itself" in sentences) == bool(said)


def test_a_time_over_a_second_is_said_in_seconds_in_a_doubt_too() -> None:
    """The doubt said "1.35e+03 ms" where the body says "1.35 s"."""
    launch = LaunchTiming(ended="measured", step_s=[1.35] * 4, samples=4.0, window_s=5.4)
    trials = TrialResults(
        trials=[], noise_floor=None, recommendation=Recommendation(), baselines=[launch]
    )
    sentences = " ".join(doubts(recording(OBSERVED), trials))
    assert "A step took 10.4 ms on average" in sentences
    assert "and 1.35 s while fixes were tried" in sentences


def test_a_loss_that_is_no_number_is_said() -> None:
    launch = LaunchTiming(ended="measured", losses=[2.3, None, 2.2, float("nan"), float("nan")])
    trials = TrialResults(
        trials=[], noise_floor=None, recommendation=Recommendation(), baselines=[launch]
    )
    (sentence,) = (x for x in doubts(recording(OBSERVED), trials) if "loss" in x)
    assert "NaN or infinite from its backward pass 4 on" in sentence
    whole = replace(trials, baselines=[replace(launch, losses=[2.3, None, 2.2])])
    assert not any("NaN" in x for x in doubts(recording(OBSERVED), whole))


def test_long_steps_beside_other_load_are_a_doubt_of_where_the_time_goes() -> None:
    """Three quarters of the time lay in steps that others had interrupted, and nothing said so."""
    steps = {"mean_s": 0.04, "median_s": 0.01, "steps": 40}
    machine = {"environment": {"usable_cpus": 2.0}, "steps": steps}
    quiet = recording({**machine, "sensors": {"other_load_cpus": 0.1}})
    assert "single steps" not in " ".join(doubts(quiet, None))
    busy = recording({**machine, "sensors": {"other_load_cpus": 1.2}})
    (said,) = [x for x in doubts(busy, None) if x.startswith("Other programs kept")]
    assert "kept 1.2 of 2 usable CPUs busy" in said
    assert "75% of the time is what slow steps took beyond the median step" in said
