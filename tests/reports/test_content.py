"""What the report says of trials, whatever the format."""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples

from torchdoctor.advice import catalogue
from torchdoctor.reports.could_help import TO_CHANGE
from torchdoctor.reports.formats import rendered
from torchdoctor.reports.trial_rows import not_measured, trial_remarks
from torchdoctor.schema import (
    Ending,
    Finding,
    FixSet,
    Location,
    Recommendation,
    RecommendedFix,
    Trial,
)


def test_each_reason_of_a_refusal_is_told_once() -> None:
    none = "The training loop uses no torch DataLoader."
    reasons = {"loader-workers": none, "prefetch-factor": none, "channels-last": "No 2-D layers."}
    rows = [
        Trial(fixes=FixSet.of(fix), verdict="refused", reason=why) for fix, why in reasons.items()
    ]
    refused = not_measured(replace(samples.loader_bound(), trials=rows))
    assert refused == {
        ("refused", none): ["loader-workers", "prefetch-factor"],
        ("refused", "No 2-D layers."): ["channels-last"],
    }


def test_the_first_screen_counts_refusals_and_the_details_have_each_reason() -> None:
    report = samples.loader_bound()
    refused = [
        Trial(fixes=FixSet.of(f"fix-{n}"), verdict="refused", reason=f"Why {n}.") for n in range(9)
    ]
    report = replace(report, trials=[*report.trials[:3], *refused])
    screen = rendered(report, "terminal", full=False)
    assert "Not measured: 9" in screen and "fix-8" not in screen
    assert "Why 8." in rendered(report, "terminal")


def test_what_was_measured_is_ranked_by_what_was_measured() -> None:
    """A 1.06x stood in the headline above a 5.65x."""
    report = samples.loader_bound()

    def open_trial(fix: str, estimate: float, low: float, high: float, pairs: int) -> Trial:
        speedup = samples.between(estimate, low, high)
        return Trial(fixes=FixSet.of(fix), speedup=speedup, pairs=pairs, numerics="identical")

    trials = [
        open_trial("channels-last", 1.06, 0.95, 1.19, 3),
        open_trial("decoded-cache", 5.65, 0.5, 60.0, 1),
        open_trial("cpu-threads", 17.9, 0.11, 3010.0, 3),  # says nothing
    ]
    report = replace(report, trials=trials, recommendation=Recommendation())
    screen = rendered(report, "terminal", full=False)
    headline = screen.partition("tried")[0]
    assert "cache decoded samples, 5.65x (0.50-60.0)" in headline and "1.06" not in headline
    places = [screen.rindex(x) for x in ("cache decoded samples", "channels-last", "CPU threads")]
    assert places == sorted(places)
    assert "17.9" not in headline


@pytest.mark.parametrize(
    ("severity", "detail"),
    [("high", None), ("medium", "index-loops"), ("medium", "work-outside-model")],
)
def test_what_only_the_user_can_change_is_on_the_first_screen(severity, detail) -> None:
    """A loop over rows took most of the step, and the screen said that there is nothing to gain.
    Float64 was told as the cause, and not that float32 is what changes it.
    """
    report = samples.nothing_found()
    loop = Location(file="/work/train.py", line=21)
    fixes = ["vectorize"]
    finding = Finding(
        check="index-loops", severity=severity, share_of_step=0.22, fixes=fixes, location=loop
    )
    offered = RecommendedFix(fix="vectorize", standing="offered", location=loop)
    same_line = Finding(check="work-outside-model", share_of_step=0.2, location=loop)
    report = replace(
        report,
        diagnosis=replace(report.diagnosis, findings=[finding, same_line], detail=detail),
        recommendation=Recommendation(also_offered=[offered]),
        ending=Ending(reason="nothing to gain", after_s=20.0, budget_s=60.0),
        trials=[replace(trial, p_helps=0.01) for trial in report.trials],
    )
    screen = rendered(report, "terminal", full=False)
    below = screen.partition(TO_CHANGE)[2]
    assert catalogue.name("vectorize") in below and "train.py:21" in below
    assert "Nothing to gain" not in screen


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_several_shares_say_in_which_order_they_stand_and_that_they_overlap(form) -> None:
    """Read as parts of one whole, 60 % and 50 % would be a defect of the report."""
    report, said = samples.loader_bound(), "Most severe first; shares overlap"
    assert said in rendered(report, form)
    one = replace(report.diagnosis, findings=report.diagnosis.findings[:1])
    assert said not in rendered(replace(report, diagnosis=one), form)


def test_a_remark_on_several_trials_stands_there_once() -> None:
    """ "screened only: 5 pairs of blocks within one launch" stood below the table six times."""
    report = samples.loader_bound()
    why = "screened only: 5 pairs of blocks within one launch"
    unclear = [
        replace(report.trials[0], fixes=FixSet.of(fix), verdict="unclear", reason=why)
        for fix in ("tf32", "channels-last", "tf32")
    ]
    remarks = trial_remarks(replace(report, trials=unclear))
    assert [one for one in remarks if "screened" in one] == [f"tf32, channels-last: {why}."]
