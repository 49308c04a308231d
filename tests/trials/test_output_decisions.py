"""A fix that changes what a model decides is never taken for one that rounds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchdoctor.schema import AlteredDecision, LaunchTiming, fact
from torchdoctor.trials.numerics import Numerics, Untouched, compare_training
from torchdoctor.trials.outcome import Allowed, results_may_stay


def launch(others: int = 0, apart: float = 0.0) -> LaunchTiming:
    decisions = [[0] * 50 for _ in range(40)]
    for number in range(others):
        decisions[number][7] = 3
    return LaunchTiming(
        ended="measured", losses=[1.0 + apart + n for n in range(40)], decisions=decisions
    )


def compared(trial: LaunchTiming, keeps: str, low_precision: bool = False) -> Numerics:
    untouched = Untouched(baselines=[launch()], infers=True, low_precision=low_precision)
    return compare_training([trial], untouched, keeps)


@pytest.mark.parametrize(
    ("others", "classification"), [(0, "within-rounding"), (2, "within-rounding"), (3, "changed")]
)
@pytest.mark.parametrize("keeps", ["lower precision", "within rounding"])
def test_more_than_one_decision_in_a_thousand_is_a_change(
    keeps: str, others: int, classification: str
) -> None:
    found = compared(launch(others, apart=1e-5), keeps)
    assert found.classification == classification
    counts = found.why.values if others > 2 else found.why.values["decisions"]["values"]
    altered = counts["altered"] if others > 2 else 2000 - counts.get("same", 2000)
    assert (altered, counts["decided"]) == (others, 2000)


def test_a_change_is_told_with_examples() -> None:
    found = compared(launch(9, apart=1e-5), "lower precision")
    assert found.why.values["examples"][0] == {"output": 1, "before": 0, "after": 3}


def test_more_digits_than_the_program_has_may_decide_otherwise() -> None:
    found = compared(launch(9, apart=1e-5), "within rounding", low_precision=True)
    assert found.classification == "within-rounding"
    assert compared(launch(9, 1e-5), "lower precision", True).classification == "changed"


def test_decisions_that_nobody_kept_decide_nothing() -> None:
    trial = LaunchTiming(ended="measured", losses=[1.00001 + n for n in range(40)])
    assert compared(trial, "within rounding").classification == "within-rounding"


def test_what_two_untouched_runs_decide_otherwise_is_no_change() -> None:
    untouched = Untouched(baselines=[launch(), launch(20, apart=1e-6)], infers=True)
    found = compare_training([launch(18, apart=1e-5)], untouched, "within rounding")
    assert found.classification == "within-rounding"


def test_lower_precision_that_decides_alike_is_a_class_of_its_own() -> None:
    found = compared(launch(2, apart=0.5), "lower precision")
    assert found.classification == "same-decisions"
    assert found.decisions is not None
    assert (found.decisions.decided, found.decisions.same) == (2000, 1998)
    assert found.decisions.share == pytest.approx(0.999)
    assert found.decisions.examples[0] == AlteredDecision(output=1, before=0, after=3)


def test_a_promise_of_the_same_numbers_is_not_kept_by_decisions() -> None:
    assert compared(launch(0, apart=0.5), "within rounding").classification == "changed"


def test_far_outputs_without_decisions_are_changed() -> None:
    trial = LaunchTiming(ended="measured", losses=[1.5 + n for n in range(40)])
    found = compared(trial, "lower precision")
    assert (found.classification, found.decisions) == ("changed", None)


@pytest.mark.parametrize("allowed", [False, True])
def test_changed_decisions_are_recommended_only_where_the_user_allows_it(allowed: bool) -> None:
    numerics = compared(launch(9, apart=0.5), "lower precision")
    assert numerics.classification == "changed"
    facts = SimpleNamespace(risk=2, doubted=False)
    measured = SimpleNamespace(numerics=numerics, arm=SimpleNamespace(facts=facts))
    assert results_may_stay(measured, Allowed(outputs=allowed)) == allowed  # type: ignore[arg-type]


def test_permission_for_outputs_is_none_for_a_training() -> None:
    numerics = Numerics("changed", fact("update-differs", apart=0.1, data=None))
    facts = SimpleNamespace(risk=2, doubted=False)
    measured = SimpleNamespace(numerics=numerics, arm=SimpleNamespace(facts=facts))
    assert not results_may_stay(measured, Allowed(outputs=True))  # type: ignore[arg-type]
