"""The figures of the untouched program come from one set of launches, and multiply up."""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import recorded_traces
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.reports.remarks import SENTENCES
from torchdoctor.reports.templates import filled
from torchdoctor.reports.vocabulary import of_unit
from torchdoctor.runs.notes import report_notes
from torchdoctor.runs.report_assembly import RunResults, assemble
from torchdoctor.runs.run_settings import RunSettings
from torchdoctor.schema import (
    Diagnosis,
    Interval,
    LaunchTiming,
    Recommendation,
    Report,
)
from torchdoctor.schema.record_files import decode_report
from torchdoctor.trials.outcome import TrialResults

PARTS = ("gpu", "memcpy", "memset", "communication", "data_loader", "cpu", "other")
TRACES = sorted(page.stem for page in (recorded_traces.PROJECT / "docs" / "traces").glob("*.md"))
WORKLOADS = Path(__file__).parent / "reports" / "workloads.json.gz"
OBSERVED = {"steps": {"samples_per_step": 32.0, "median_s": 0.010, "mean_s": 0.0104}}


def remarks(*of: Any) -> dict[str, dict[str, Any]]:
    return {remark.fact: remark.values for remark in report_notes(*of)}


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
    ("noise", "is_noisy"),
    [((0.48, 0.10, 2.3), True), ((1.31, 0.90, 1.91), True), ((1.05, 0.95, 1.16), False)],
)
def test_a_program_unlike_itself_is_doubted(
    noise: tuple[float, float, float], is_noisy: bool
) -> None:
    """Figures beside it would be taken for those of fixes."""
    estimate, low, high = noise
    trials = TrialResults(
        trials=[],
        noise_floor=Interval(estimate=estimate, low=low, high=high),
        recommendation=Recommendation(),
    )
    told = remarks(recording(OBSERVED), trials)
    assert told.get("noisy-machine") == ({"ratio": estimate} if is_noisy else None)


def test_a_time_over_a_second_is_said_in_seconds_in_a_doubt_too() -> None:
    """The doubt said "1.35e+03 ms" where the body says "1.35 s"."""
    launch = LaunchTiming(ended="measured", step_s=[1.35] * 4, samples=4.0, window_s=5.4)
    trials = TrialResults(
        trials=[], noise_floor=None, recommendation=Recommendation(), baselines=[launch]
    )
    values = remarks(recording(OBSERVED), trials)["step-time-changed"]
    sentence = filled(SENTENCES["step-time-changed"], {**of_unit("step"), **values}, {})
    assert "10.4 ms" in sentence and "1.35 s" in sentence


@pytest.mark.parametrize(("later_s", "is_told"), [(0.004, False), (0.05, True)])
def test_a_step_that_grows_is_no_change_of_the_load(later_s: float, is_told: bool) -> None:
    """Fixes are compared at earlier, shorter steps: the machine was said to be another one."""
    grows = {"slope_s": 1e-5, "first_s": 0.003, "last_s": 0.02, "phase": "other"}
    launch = LaunchTiming(ended="measured", step_s=[later_s] * 4, samples=4.0, window_s=1.0)
    trials = TrialResults(
        trials=[], noise_floor=None, recommendation=Recommendation(), baselines=[launch]
    )
    told = remarks(recording({"steps": {"mean_s": 0.0104, "growth": grows}}), trials)
    assert ("step-time-changed" in told) == is_told


def test_a_loss_that_is_no_number_is_said() -> None:
    launch = LaunchTiming(ended="measured", losses=[2.3, None, 2.2, float("nan"), float("nan")])
    trials = TrialResults(
        trials=[], noise_floor=None, recommendation=Recommendation(), baselines=[launch]
    )
    told = remarks(recording(OBSERVED), trials)
    assert told["loss-not-finite"] == {"backward_pass": 4}
    whole = replace(trials, baselines=[replace(launch, losses=[2.3, None, 2.2])])
    assert "loss-not-finite" not in remarks(recording(OBSERVED), whole)


def test_long_steps_beside_other_load_are_a_doubt_of_where_the_time_goes() -> None:
    """Three quarters of the time lay in steps that others had interrupted, and nothing said so."""
    steps = {"mean_s": 0.04, "median_s": 0.01, "steps": 40}
    machine = {"environment": {"usable_cpus": 2.0}, "steps": steps}
    quiet = recording({**machine, "sensors": {"other_load_cpus": 0.1}})
    assert "busy-machine" not in remarks(quiet, None)
    busy = recording({**machine, "sensors": {"other_load_cpus": 1.2}})
    values = remarks(busy, None)["busy-machine"]
    assert values["load"] == "1.2 of 2 usable CPUs"
    assert values["long_steps"] == pytest.approx(0.75)


def gold_reports() -> dict[str, Callable[[], Report]]:
    """The reports whose screens are approved: of sample workloads, made ones, recorded traces."""
    workloads = {
        name: functools.partial(decode_report, json.dumps(stored))
        for name, stored in json.loads(gzip.decompress(WORKLOADS.read_bytes())).items()
    }
    traces = {name: functools.partial(recorded_traces.report, name) for name in TRACES}
    return {**workloads, **traces}


GOLD = gold_reports()


@pytest.mark.parametrize("name", GOLD)
def test_no_two_figures_of_one_report_contradict_each_other(name: str) -> None:
    if name in TRACES:
        recorded_traces.path(name)
    report = GOLD[name]()
    shares = asdict(report.baseline.shares)
    assert sum(shares[part] or 0.0 for part in PARTS) <= 1.001
    checks = catalogue.checks()
    for finding in report.diagnosis.findings:
        assert (finding.share_of_step or 0.0) <= 1.001, finding.check
        field = checks[finding.check].share_field
        told = shares.get(field or "")
        if told is None or finding.share_of_step is None:
            continue
        # A host that is blocked in copies is in calls of the runtime.
        blocked = (shares["runtime"] or 0.0) if field == "memcpy" else 0.0
        assert finding.share_of_step <= told + blocked + 0.001, finding.check
    for result in [report.recommendation, *report.trials]:
        if result.at_most is not None and result.speedup is not None:
            assert result.speedup.low > result.at_most
