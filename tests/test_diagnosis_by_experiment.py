"""Shares suggest a bottleneck; taking its cost away confirms or refutes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from in_words import in_words

from torchdoctor.advice import catalogue
from torchdoctor.advice.diagnosis import by_experiment
from torchdoctor.reports.details import path_rule
from torchdoctor.schema import (
    Diagnosis,
    Environment,
    Evidence,
    Finding,
    Interval,
    Question,
    Report,
    TriedCeiling,
    Verdict,
    WorkloadRecord,
)

FINDINGS = [
    Finding(check="worker-count", share_of_step=0.45, severity="high"),
    Finding(check="compute", share_of_step=0.5, severity="moderate"),
]
DIAGNOSIS = Diagnosis(
    bottleneck="data_loader",
    detail="worker-count",
    verdict=Verdict(kind="data_loader", share=0.45),
    findings=FINDINGS,
)
LOADER = TriedCeiling(
    ceiling="loader-batches", branch="data_loader", removes="its data loader", share=0.45
)
MODEL = TriedCeiling(
    ceiling="model-skipped", branch="gpu", removes="forward and backward", share=0.5
)


def gave(one: TriedCeiling, low: float, high: float, verdict: str) -> TriedCeiling:
    found = Interval(estimate=(low + high) / 2, low=low, high=high)
    return replace(one, speedup=found, verdict=verdict)


def weigh(*tried: TriedCeiling) -> tuple[Diagnosis, list[Evidence]]:
    found, doubts = by_experiment(DIAGNOSIS, list(tried), catalogue.checks(), True)
    return in_words(found), doubts


def test_a_gain_confirms_the_bottleneck() -> None:
    found, doubts = weigh(gave(LOADER, 1.7, 1.9, "gain"))
    assert found.bottleneck == "data_loader" and found.detail == "worker-count"
    assert found.sentence == in_words(DIAGNOSIS).sentence, (
        "the figure stands among the upper bounds"
    )
    assert doubts == []


def test_of_an_interval_that_bounds_nothing_its_lower_end_is_said() -> None:
    """A step of 69 ms without its 67 ms was "1209.27x [1.77, 824670.13] at most"."""
    found, _ = weigh(gave(LOADER, 0.99, 1.01, "hidden"), gave(MODEL, 1.77, 824670.0, "gain"))
    assert "1.77x" in found.sentence and "824670" not in found.sentence


def test_a_hidden_bottleneck_gives_way_to_what_gains() -> None:
    found, doubts = weigh(gave(LOADER, 0.99, 1.01, "hidden"), gave(MODEL, 1.8, 2.2, "gain"))
    assert (found.bottleneck, found.detail) == ("gpu", "compute")
    experiment = found.verdict.experiment
    assert experiment is not None
    assert (experiment.outcome, experiment.limit) == ("hidden", MODEL.removes)
    [doubt] = doubts
    assert (doubt.fact, doubt.values["profiled"]) == ("share-partly-hidden", 0.45)


def test_a_hidden_bottleneck_stays_where_nothing_else_gains_and_is_called_hidden() -> None:
    found, _ = weigh(gave(LOADER, 0.99, 1.01, "hidden"), gave(MODEL, 0.9, 1.3, "unclear"))
    assert found.bottleneck == "data_loader"
    experiment = found.verdict.experiment
    assert experiment is not None
    assert (experiment.outcome, experiment.limit) == ("hidden", None)


def test_what_is_not_decided_or_only_a_part_changes_nothing() -> None:
    part = replace(gave(LOADER, 0.99, 1.01, "hidden"), whole=False)
    for tried in (gave(LOADER, 0.8, 1.3, "unclear"), LOADER, part):
        assert weigh(tried)[0] == in_words(DIAGNOSIS)


def test_a_share_that_explains_less_than_was_gained_is_said() -> None:
    small = replace(LOADER, share=0.05)
    _, doubts = weigh(gave(small, 1.6, 1.7, "gain"))
    assert [doubt.fact for doubt in doubts] == ["share-explains-less"]


def test_a_tiny_gain_gives_way_to_one_that_is_many_times_as_large() -> None:
    found, _ = weigh(gave(LOADER, 1.005, 1.015, "gain"), gave(MODEL, 3.0, 3.4, "gain"))
    assert found.bottleneck == "gpu"
    experiment = found.verdict.experiment
    assert experiment is not None
    assert (experiment.outcome, experiment.limit) == ("gain", MODEL.removes)
    assert experiment.speedup.estimate == pytest.approx(1.01)
    both, _ = weigh(gave(LOADER, 1.5, 1.6, "gain"), gave(MODEL, 1.7, 2.2, "gain"))
    assert both.bottleneck == "data_loader", "both matter, and the tree's order decides"
    close, _ = weigh(gave(LOADER, 1.005, 1.3, "gain"), gave(MODEL, 1.2, 1.6, "gain"))
    assert close.bottleneck == "data_loader", "the intervals overlap"


def test_a_low_share_that_gives_nothing_dethrones_nobody() -> None:
    low = replace(LOADER, share=0.15)
    found, _ = weigh(gave(low, 0.99, 1.01, "nothing"), gave(MODEL, 1.8, 2.2, "gain"))
    assert found.bottleneck == "data_loader"
    assert found.verdict.experiment is not None
    assert found.verdict.experiment.outcome == "nothing"
    assert found.verdict.experiment.limit is None


def test_what_took_longer_without_it_says_nothing() -> None:
    found, doubts = weigh(gave(LOADER, 0.85, 0.95, "slower"), gave(MODEL, 1.8, 2.2, "gain"))
    assert found == in_words(DIAGNOSIS) and doubts == []


def answered(**answers: str) -> list[Question]:
    checks = catalogue.checks()
    return [
        Question(
            question=checks[ident.replace("_", "-")].question.text,
            answer=answer,
            metric="",
            value=0.5,
            threshold=0.3,
            source="",
        )
        for ident, answer in answers.items()
    ]


def test_without_the_model_the_host_has_less_to_do_as_well() -> None:
    """The GPU idles and the host is busy: what limits it is the host, not the GPU."""
    path = answered(data_wait="yes", gpu_utilization="no", cpu_execution="yes")
    diagnosis = replace(DIAGNOSIS, path=path)
    tried = [gave(LOADER, 0.99, 1.01, "hidden"), gave(MODEL, 1.8, 2.2, "gain")]
    found, _ = by_experiment(diagnosis, tried, catalogue.checks(), True)
    assert found.bottleneck == "cpu"
    busy = replace(diagnosis, path=answered(data_wait="yes", gpu_utilization="yes"))
    assert by_experiment(busy, tried, catalogue.checks(), True)[0].bottleneck == "gpu"


def test_the_rule_of_the_path_does_not_contradict_the_experiment() -> None:
    path = answered(data_wait="yes", gpu_utilization="yes")
    report = Report(
        workload=WorkloadRecord(command=["train.py"]),
        environment=Environment(),
        diagnosis=replace(DIAGNOSIS, path=path),
        ceiling_trials=[LOADER],
    )
    first_yes = path_rule(report)
    replaced = replace(report, diagnosis=replace(report.diagnosis, bottleneck="gpu"))
    untried = path_rule(replace(replaced, ceiling_trials=[]))
    assert first_yes and path_rule(replaced) not in (first_yes, untried, "")
