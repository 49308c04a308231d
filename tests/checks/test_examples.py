"""Every check's own examples: partial recordings in which it fires, and in which it does not."""

from __future__ import annotations

import copy

import pytest
from catalogue_faults import faults
from partial_recordings import recording

from torchdoctor.advice import catalogue
from torchdoctor.advice.diagnosis import tree
from torchdoctor.schema import BRANCHES, Finding

CHECKS = catalogue.checks()
FIRING = [(i, n) for i, check in CHECKS.items() for n in range(len(check.fires))]
SILENT = [(i, n) for i, check in CHECKS.items() for n in range(len(check.quiet))]


def test_every_check_file_is_complete():
    assert [fault for fault in faults() if fault.startswith("check")] == []


@pytest.mark.parametrize(("ident", "number"), FIRING)
def test_fires(ident, number):
    findings = CHECKS[ident].findings(recording(CHECKS[ident].fires[number]))
    assert findings, f"{ident} is silent on its own example {number}"
    for finding in findings:
        assert isinstance(finding, Finding)
        assert finding.check == ident
        assert finding.severity in ("high", "moderate", "advice")
        assert finding.evidence, "a finding without evidence convinces nobody"
        assert (
            any(fact.values or fact.share is not None for fact in finding.evidence)
            or finding.location
            or (finding.share_of_step is None)
        )
        if finding.share_of_step is not None:
            assert 0.0 < finding.share_of_step <= 1.0


@pytest.mark.parametrize(("ident", "number"), SILENT)
def test_stays_quiet(ident, number):
    assert CHECKS[ident].findings(recording(CHECKS[ident].quiet[number])) == []


@pytest.mark.parametrize("ident", CHECKS)
def test_is_quiet_where_nothing_is_wrong_or_nothing_was_measured(ident):
    assert CHECKS[ident].findings(recording()) == []
    assert CHECKS[ident].findings(recording({"steps": None, "processes": []})) == []


@pytest.mark.parametrize("ident", CHECKS)
def test_has_examples(ident):
    assert CHECKS[ident].quiet
    assert CHECKS[ident].fires or ident == "cpu-execution"


def test_the_tree_asks_every_branch_in_order():
    asked = tree(CHECKS)
    assert [check.branch for check in asked] == [b for b in BRANCHES if b != "other"]
    for check in asked:
        assert check.question.text.endswith("?")
        assert check.question.metric
        assert check.question.measure(recording({"steps": None})) is None


@pytest.mark.parametrize("ident", CHECKS)
def test_looking_changes_nothing(ident):
    for example in CHECKS[ident].fires:
        seen = recording(example)
        before = copy.deepcopy(seen)
        first = CHECKS[ident].findings(seen)
        assert seen == before
        assert CHECKS[ident].findings(seen) == first
