"""What the report says of trials, whatever the format."""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples

from torchdoctor.reports import html, markdown, terminal
from torchdoctor.reports.content import offered
from torchdoctor.reports.not_measured import not_measured, told_and_named
from torchdoctor.reports.trial_remarks import trial_remarks
from torchdoctor.words import Trial


def test_refusals_that_begin_alike_are_one_row() -> None:
    none = "The training loop uses no torch DataLoader"
    reasons = {
        "loader-workers": f"{none}, so there are no workers to start.",
        "prefetch-factor": f"{none}, so nothing is prefetched.",
        "channels-last": "The model has no 2-D convolutions.",
    }
    rows = [Trial(fix=fix, verdict="refused", reason=why) for fix, why in reasons.items()]
    found = not_measured(replace(samples.loader_bound(), trials=rows))
    assert [(row.fixes, row.reason) for row in found] == [
        (["loader-workers", "prefetch-factor"], f"{none}."),
        (["channels-last"], reasons["channels-last"]),
    ]


def test_many_refusals_are_told_where_they_matter_and_named_elsewhere() -> None:
    report = samples.loader_bound()
    finding = replace(report.diagnosis.findings[0], fixes=["loader-workers"])
    names = ["loader-workers", *(f"fix-{number}" for number in range(9))]
    refused = [
        replace(report.trials[0], fix=name, settings={}, verdict="refused", reason=f"Why {name}.")
        for name in names
    ]
    report = replace(
        report, diagnosis=replace(report.diagnosis, findings=[finding]), trials=refused
    )
    told, named = told_and_named(report)
    assert [row.fixes for row in told] == [["loader-workers"]]
    assert named == sorted(names[1:])
    few, none = told_and_named(replace(report, trials=refused[:5]))
    assert len(few) == 5 and none == []
    printed = terminal.render(report, 80)
    assert "Why loader-workers." in printed and "fix-8" in printed and "Why fix-8." not in printed
    more = [replace(one, fix=f"{one.fix}-too") for one in refused[1:]]
    printed = terminal.render(replace(report, trials=[*refused, *more]), 80)
    assert "18 other fixes (refused)" in printed and "fix-8" not in printed


def test_what_comes_first_is_not_worth_doing_as_well() -> None:
    """ "Also worth doing" stood below nothing that was worth doing."""
    report = samples.loader_bound()
    fix = replace(report.recommendation.fixes[0], standing="confirmed")
    alone = replace(report.recommendation, fixes=[], also_offered=[fix])
    after = replace(report.recommendation, also_offered=[fix])
    first, also = (
        [x for x, _ in offered(replace(report, recommendation=y))] for y in (alone, after)
    )
    assert first == ["Worth doing, measured by itself"]
    assert also == ["Also worth doing, measured by itself"]


@pytest.mark.parametrize("form", [terminal, markdown, html])
def test_several_shares_say_in_which_order_they_stand_and_that_they_overlap(form) -> None:
    """Read as parts of one whole, 60 % and 50 % would be a defect of the report."""
    report, said = samples.loader_bound(), "Most severe first; shares overlap"
    assert said in form.render(report)
    one = replace(report.diagnosis, findings=report.diagnosis.findings[:1])
    assert said not in form.render(replace(report, diagnosis=one))


def test_a_remark_on_several_trials_stands_there_once() -> None:
    """ "screened only: 5 pairs of blocks within one launch" stood below the table six times."""
    report = samples.loader_bound()
    why = "screened only: 5 pairs of blocks within one launch"
    unclear = [
        replace(report.trials[0], fix=fix, settings={}, verdict="unclear", reason=why)
        for fix in ("tf32", "channels-last", "tf32")
    ]
    remarks = trial_remarks(replace(report, trials=unclear))
    assert [one for one in remarks if "screened" in one] == [f"tf32, channels-last: {why}."]
