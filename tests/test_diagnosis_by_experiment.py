"""Shares suggest a bottleneck; taking its cost away confirms or refutes it."""

from __future__ import annotations

from dataclasses import replace

from torchdoctor import catalogue
from torchdoctor.diagnosis_by_experiment import by_experiment
from torchdoctor.records import Diagnosis, Finding, Interval, TriedCeiling

FINDINGS = [
    Finding(check="worker-count", share_of_step=0.45, severity="high"),
    Finding(check="compute", share_of_step=0.5, severity="moderate"),
]
DIAGNOSIS = Diagnosis(
    bottleneck="data_loader",
    detail="worker-count",
    sentence="Training waits for data 45% of each step.",
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


def weigh(*tried: TriedCeiling) -> tuple[Diagnosis, list[str]]:
    return by_experiment(DIAGNOSIS, list(tried), catalogue.checks(), True)


def test_a_gain_confirms_the_bottleneck() -> None:
    found, doubts = weigh(gave(LOADER, 1.7, 1.9, "gain"))
    assert found.bottleneck == "data_loader" and found.detail == "worker-count"
    assert found.sentence.endswith("without its data loader, 1.80x [1.70, 1.90] at most.")
    assert doubts == []


def test_a_hidden_bottleneck_gives_way_to_what_gains() -> None:
    found, doubts = weigh(gave(LOADER, 0.99, 1.01, "hidden"), gave(MODEL, 1.8, 2.2, "gain"))
    assert (found.bottleneck, found.detail) == ("gpu", "compute")
    assert "it is hidden. What limits it is forward and backward" in found.sentence
    assert len(doubts) == 1 and "disagree about its data loader: 45% of the step" in doubts[0]


def test_a_hidden_bottleneck_stays_where_nothing_else_gains_and_is_called_hidden() -> None:
    found, _ = weigh(gave(LOADER, 0.99, 1.01, "hidden"), gave(MODEL, 0.9, 1.3, "unclear"))
    assert found.bottleneck == "data_loader"
    assert found.sentence.endswith("it is hidden, and not the bottleneck.")


def test_what_is_not_decided_or_only_a_part_changes_nothing() -> None:
    part = replace(gave(LOADER, 0.99, 1.01, "hidden"), whole=False)
    for tried in (gave(LOADER, 0.8, 1.3, "unclear"), LOADER, part):
        assert weigh(tried)[0] == DIAGNOSIS


def test_a_share_that_explains_less_than_was_gained_is_said() -> None:
    small = replace(LOADER, share=0.05)
    _, doubts = weigh(gave(small, 1.6, 1.7, "gain"))
    assert len(doubts) == 1 and "more than its share explains" in doubts[0]
