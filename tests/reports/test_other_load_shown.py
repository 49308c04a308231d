"""A busy machine: said on the first screen, and no firm verdict on workers and threads."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import samples

from torchdoctor.advice import catalogue
from torchdoctor.reports.formats import rendered
from torchdoctor.runs import busy_machine
from torchdoctor.schema import Ending, FixSet, OtherLoad, Trial
from torchdoctor.schema.record_files import decode_report, encode

FIXES = catalogue.fixes()
BUSY, QUIET = OtherLoad(held=1.9, usable=2.0), OtherLoad(held=0.1, usable=2.0)
NOTHING = Ending(reason="nothing to gain", after_s=40.0, budget_s=60.0)


@pytest.mark.parametrize("fix", ["loader-workers", "cpu-threads", "prefetch-factor"])
@pytest.mark.parametrize("verdict", ["same", "slower"])
def test_that_workers_or_threads_gain_nothing_is_unclear(fix: str, verdict: str) -> None:
    """Three workers were "slower" beside two programs that held both processors."""
    for fixes in (FixSet.of(fix), FixSet({fix: {}, "set-to-none": {}})):
        row = Trial(fixes=fixes, verdict=verdict, on_busy_machine=True)
        assert busy_machine.judged([row], FIXES)[0].verdict == "unclear"
        quiet = replace(row, on_busy_machine=False)
        assert busy_machine.judged([quiet], FIXES) == [quiet]


def test_other_verdicts_stay() -> None:
    rows = [
        Trial(fixes=FixSet.of("set-to-none"), verdict="same", on_busy_machine=True),
        Trial(fixes=FixSet.of("loader-workers"), verdict="faster", on_busy_machine=True),
        Trial(fixes=FixSet.of("cpu-threads"), verdict="failed", on_busy_machine=True),
        Trial(fixes=FixSet.of("a fix of another version"), verdict="same", on_busy_machine=True),
    ]
    assert busy_machine.judged(rows, FIXES) == rows


@pytest.mark.parametrize(
    ("verdict", "load", "reason"),
    [
        ("slower", BUSY, "busy machine"),
        ("unclear", BUSY, "busy machine"),
        ("refused", BUSY, "nothing to gain"),
        ("slower", QUIET, "nothing to gain"),
        ("slower", None, "nothing to gain"),
    ],
)
def test_nothing_to_gain_is_not_the_last_word(verdict: str, load: Any, reason: str) -> None:
    rows = [
        Trial(fixes=FixSet.of("set-to-none"), verdict="same"),
        Trial(fixes=FixSet.of("loader-workers"), verdict=verdict),
    ]
    ending = busy_machine.ending_of(NOTHING, rows, load, FIXES)
    assert ending is not None and ending.reason == reason


def test_how_a_search_ended_otherwise_stays() -> None:
    rows = [Trial(fixes=FixSet.of("loader-workers"), verdict="unclear")]
    decided = replace(NOTHING, reason="decided")
    assert busy_machine.ending_of(decided, rows, BUSY, FIXES) == decided
    assert busy_machine.ending_of(None, rows, BUSY, FIXES) is None


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_the_first_screen_says_it_and_no_firm_nothing_to_gain(form: str) -> None:
    """It stood in the details only, under a firm "Nothing to gain"."""
    report = samples.nothing_found()
    rows = [replace(x, on_busy_machine=True) for x in report.trials]
    rows = busy_machine.judged(rows, FIXES)
    ending = busy_machine.ending_of(NOTHING, rows, BUSY, FIXES)
    busy = replace(report, trials=rows, ending=ending, other_load=BUSY)
    shown = rendered(busy, form, full=False) if form == "terminal" else rendered(busy, form)
    assert "1.9 of 2" in shown
    assert "Nothing to gain" not in shown
    quiet = rendered(replace(report, other_load=QUIET), form)
    assert "0.1 of 2" not in quiet


@pytest.mark.parametrize(("high", "firm"), [(3.31, False), (1.01, True)])
def test_what_gains_by_changing_results_is_not_nothing(high: float, firm: bool) -> None:
    """Beside weights in 8 bits, undecided up to 3.31x, stood a firm "Nothing to gain"."""
    report = samples.nothing_found()
    speedup = samples.between(min(1.64, high), 0.81, high)
    changed = Trial(
        fixes=FixSet.of("int8-weights"), speedup=speedup, numerics="changed", verdict="unclear"
    )
    shown = rendered(replace(report, trials=[*report.trials, changed]), "terminal", full=False)
    assert ("Nothing to gain" in shown) == firm
    assert ("without changing training" in shown) != firm


def test_a_report_without_it_can_be_read() -> None:
    report = replace(samples.nothing_found(), other_load=BUSY)
    data = json.loads(encode(report))
    assert data["other_load"] == {"held": 1.9, "usable": 2.0}
    del data["other_load"]
    assert decode_report(json.dumps(data)).other_load is None
