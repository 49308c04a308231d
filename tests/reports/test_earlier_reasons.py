"""Reports that hold reasons as words alone are read with the facts that later ones have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from samples import loader_bound

from torchdoctor.reports import wording
from torchdoctor.reports.summary import summarized
from torchdoctor.reports.verdict import with_sentences
from torchdoctor.schema import Report, message, within
from torchdoctor.schema.record_files import decode_report, encode

TOO_SHORT = (
    "Observing left 3 s of the budget of 20 s, too little for a pair of launches: "
    "--budget 46s would do."
)


def of_schema_2_0(**fields: Any) -> Report:
    """Return a report as 2.0 held it, read as one of today."""
    outline = json.loads(encode(loader_bound())) | fields | {"schema_version": "2.0"}
    for row in [*outline["trials"], *outline["refused"]]:
        row.pop("why", None)
        row.pop("choice", None)
    return decode_report(json.dumps(outline))


def test_what_was_not_measured_is_told_from_what_had_no_time() -> None:
    trial = json.loads(encode(loader_bound()))["trials"][0]
    trial |= {"verdict": "unclear", "speedup": None, "pairs": 0}
    unlikely = trial | {"reason": "not worth its time", "because": "not worth its time"}
    late = trial | {"reason": "the time ran out", "because": "the time ran out"}
    screened = trial | {"reason": "measured in one launch only (3 pairs of blocks), not in fresh"}
    rows = of_schema_2_0(trials=[unlikely, late, screened]).trials
    assert [row.not_worth_its_time for row in rows[:3]] == [True, False, False]
    assert [row.lacked_time for row in rows[:3]] == [False, True, False]
    assert [evidence.fact for evidence in rows[2].why] == ["blocks-only"]


def test_a_budget_that_was_too_short_still_names_one_that_does() -> None:
    report = of_schema_2_0(trials=[], no_trials_reason=TOO_SHORT, ending=None, recommendation={})
    assert report.no_trials is not None
    assert (report.no_trials.fact, report.no_trials.values) == (
        "budget-too-short",
        {"enough_s": 46},
    )
    assert report.no_trials_reason == TOO_SHORT
    summary = summarized(report).summary
    assert summary is not None and summary.next is not None
    assert "--budget" in summary.next.command


def test_words_that_have_no_fact_are_kept() -> None:
    report = of_schema_2_0()
    told = {row.fixes.only: row for row in report.trials if row.verdict == "refused"}
    assert [evidence.fact for evidence in told["tf32"].why] == ["said"]
    assert told["tf32"].why[0].sentence == told["tf32"].reason


def test_which_fix_had_no_edit_is_still_known() -> None:
    fixes = {"loader-workers": {"num_workers": 4}, "decoded-cache": {}}
    lacking = {"fixes": fixes, "problem": "lacks-edit", "detail": "decoded-cache"}
    failed = {"fixes": fixes, "problem": "failed", "detail": "UnboundLocalError: model"}
    recommended = json.loads(encode(loader_bound()))["recommendation"]
    report = of_schema_2_0(recommendation=recommended | {"rejected_patches": [lacking, failed]})
    without_edit, broken = report.recommendation.rejected_patches
    assert without_edit.why is not None and without_edit.why.values == {"fixes": ["decoded-cache"]}
    assert broken.why is not None and broken.why.sentence == broken.detail


def test_what_numerics_rested_on_is_kept_as_it_was_said() -> None:
    trial = json.loads(encode(loader_bound()))["trials"][0]
    trial |= {"numerics": "changed", "numerics_reason": "Loss 3 is nan.", "numerics_why": None}
    report = of_schema_2_0(trials=[trial])
    (row,) = (row for row in report.trials if row.numerics == "changed")
    assert row.numerics_why is not None
    assert row.numerics_why.sentence == row.numerics_reason == "Loss 3 is nan."


@pytest.mark.parametrize(
    ("ident", "values"),
    [
        ("results-unchecked", {"fixes": "tf32"}),
        ("pair-lost", {"node": "node2"}),
        ("node-left-out", {"node": "node2"}),
        ("no-overlay", {}),
        ("launches-in-turns", {}),
    ],
)
def test_a_remark_quotes_the_reason_that_was_text(ident: str, values: dict[str, str]) -> None:
    """Worded again by the template of today, it had no value of the name that is asked for."""
    said = "no losses of both to compare"
    remark = {"severity": "beware", "fact": ident, "values": {**values, "reason": said}}
    report = of_schema_2_0(remarks=[remark])
    assert report.remarks[0].values == {**values, "why": within(message(said))}
    assert said in with_sentences(report).doubts[0]


def test_a_remark_without_a_reason_is_told_without_one() -> None:
    remark = {"severity": "detail", "fact": "no-overlay", "values": {"reason": None}}
    assert with_sentences(of_schema_2_0(remarks=[remark])).doubts


def test_what_a_failure_had_to_do_with_keeps_its_words() -> None:
    failed = {"exit_code": -9, "steps": 12, "layer": "Look at the memory limit."}
    report = of_schema_2_0(failure=failed)
    assert report.failure is not None
    assert [evidence.sentence for evidence in report.failure.besides] == [failed["layer"]]
    assert str(failed["layer"]) in wording.program_failed(report.failure).message
    quiet = of_schema_2_0(failure=failed | {"layer": ""})
    assert quiet.failure is not None and quiet.failure.besides == []
