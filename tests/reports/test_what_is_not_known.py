"""A table that says "not known" says why, once for each reason, in each form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import between, loader_bound

from torchdoctor.reports.formats import rendered
from torchdoctor.reports.summary import of_report
from torchdoctor.schema import OUT_OF_TIME, Ending, FixSet, Recommendation, Report, Trial, fact
from torchdoctor.schema.figures import duration

UNKNOWN = "whether training stays the same is not known"
WHY = "losses were not seen: the program calls no backward() on a single number"


def unknown(fix: str, **values: object) -> Trial:
    trial = Trial(
        fixes=FixSet.of(fix),
        verdict="unclear",
        numerics="not-comparable",
        numerics_reason=WHY,
        speedup=between(1.2, 0.9, 1.6),
        pairs=4,
    )
    return replace(trial, **values)


def report(*trials: Trial) -> Report:
    return replace(loader_bound(), trials=list(trials))


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_a_reason_is_told_once_with_all_that_it_holds_for(form) -> None:
    few = "too few losses"
    other = unknown("channels-last", numerics_reason=few)
    made = report(unknown("loader-workers"), unknown("torch-compile"), other)
    text = " ".join(rendered(made, form).split())
    assert f"loader-workers, torch-compile: {UNKNOWN}, because {WHY}." in text
    assert text.count(WHY) == 1
    assert f"channels-last: {UNKNOWN}, because {few}." in text


def test_what_was_not_measured_needs_no_such_reason() -> None:
    refused = unknown("tf32", verdict="refused", speedup=None, pairs=0)
    assert UNKNOWN not in rendered(report(refused), "terminal")
    assert UNKNOWN not in rendered(loader_bound(), "terminal")


def test_a_search_that_tried_nothing_says_so_and_what_it_needs() -> None:
    """Its only fix was too dear for the budget, and it said that there is nothing to gain."""
    ending = Ending(reason="not tried", after_s=50.0, budget_s=60.0, needed_s=170.0)
    untried = Trial(fixes=FixSet.of("set-to-none"), choice=fact(OUT_OF_TIME))
    searched = replace(
        loader_bound(),
        trials=[untried],
        ending=ending,
        recommendation=Recommendation(),
        reproduce=["torchdoctor run --budget 60s -- train.py"],
    )
    screen = " ".join(rendered(searched, "terminal", full=False).split())
    assert duration(ending.budget_s) in screen and "--budget 3m" in screen
    assert "othing to gain" not in screen
    following = of_report(searched).next
    assert following is not None and "--budget 3m" in following.command
