"""Sentences are made last: what a screen says does not hang on how a fact is worded."""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import replace
from string import Formatter
from typing import Any

import pytest
import recorded_traces
from partial_recordings import recording
from samples import SAMPLES, outline_of_1_0
from test_gold_screens import TRACES, stored

from torchdoctor.advice import catalogue
from torchdoctor.reports import first_screen, templates, verdict
from torchdoctor.reports.document import Sentence
from torchdoctor.reports.vocabulary import vocabulary
from torchdoctor.words import Evidence, Location, Report
from torchdoctor.words.record_files import decode_report

CHECKS = catalogue.checks()
WORKLOADS = sorted(stored())
ALWAYS = {"share", "location", *vocabulary(SAMPLES["loader_bound"]())}


def facts_shown(report: Report, told: dict[str, str]) -> list[list[str]]:
    """Return for each paragraph of the first screen the facts whose sentences stand in it."""
    shown = [
        block.text
        for section in first_screen.screen(report, "")
        for block in section.blocks
        if isinstance(block, Sentence)
    ]
    # A long one is cut, and a place may stand before its full stop.
    begins = {fact: first_screen.prose(text)[:40].rstrip(".") for fact, text in told.items()}
    return [[fact for fact, text in begins.items() if text and text in block] for block in shown]


def in_other_words(report: Report) -> tuple[Report, Report, list[str]]:
    """Return the report with two unlike sentences for each fact, and the names of the facts."""

    def worded(begin: str) -> Report:
        def told(check: str, number: int, evidence: Evidence) -> Evidence:
            return replace(evidence, sentence=f"{begin} {check} {number} {evidence.fact}.")

        findings = [
            replace(f, evidence=[told(f.check, n, x) for n, x in enumerate(f.evidence)])
            for f in report.diagnosis.findings
        ]
        return replace(report, diagnosis=replace(report.diagnosis, findings=findings))

    first, second = worded("Fact"), worded("At model.py:3, 99% of it:")
    names = [
        f"{f.check} {n} {x.fact}"
        for f in report.diagnosis.findings
        for n, x in enumerate(f.evidence)
    ]
    return first, second, names


def sample(name: str) -> Report:
    if name in SAMPLES:
        return SAMPLES[name]()
    if name in WORKLOADS:
        return decode_report(json.dumps(stored()[name]))
    return recorded_traces.report(name)


@pytest.mark.parametrize("name", [*SAMPLES, *WORKLOADS, *TRACES])
def test_the_same_facts_stand_at_the_same_places_however_they_are_worded(name: str) -> None:
    """A headline that named a place, or a figure, in other words chose another proof."""
    report = sample(name)
    first, second, names = in_other_words(report)
    said = [
        facts_shown(made, {name: f"{begin} {name}." for name in names})
        for made, begin in ((first, "Fact"), (second, "At model.py:3, 99% of it:"))
    ]
    assert said[0] == said[1]
    own = {
        f"{f.check} {n} {x.fact}": x.sentence
        for f in report.diagnosis.findings
        for n, x in enumerate(f.evidence)
    }
    shown = facts_shown(report, own)
    assert all(set(facts) <= set(others) for facts, others in zip(said[0], shown, strict=True))


def made_facts(ident: str) -> list[tuple[str, set[str]]]:
    """Return the facts that a check's file makes, with the names of their values."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(CHECKS[ident].examine)))
    return [
        (call.args[0].value, {keyword.arg or "" for keyword in call.keywords})
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "fact"
        and isinstance(call.args[0], ast.Constant)
    ]


@pytest.mark.parametrize("ident", CHECKS)
def test_each_fact_of_a_check_has_a_template_that_its_values_fill(ident: str) -> None:
    sentences = CHECKS[ident].sentences
    for fact, values in made_facts(ident):
        named = {
            name.partition("!")[0] for _, name, _, _ in Formatter().parse(sentences[fact]) if name
        }
        assert named <= values | ALWAYS, f"{ident}: {fact} lacks {named - values - ALWAYS}"


@pytest.mark.parametrize("ident", CHECKS)
def test_each_example_of_a_check_is_worded(ident: str) -> None:
    for example in CHECKS[ident].fires:
        seen = recording(example)
        for finding in CHECKS[ident].findings(seen):
            report = replace(SAMPLES["nothing_found"](), trace=seen.trace)
            known = replace(report.diagnosis, findings=[finding])
            told = verdict.with_sentences(replace(report, diagnosis=known))
            for evidence in told.diagnosis.findings[0].evidence:
                assert evidence.sentence.strip() and "{" not in evidence.sentence


VALUES: dict[str, Any] = {
    "share": 0.4,
    "copies": 2.0,
    "none": None,
    "seconds": 0.0123,
    "names": ["a", "b"],
    "items": [{"name": "mm"}, {"name": "add"}],
    "location": Location(file="/w/train.py", line=12),
}


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{share:.0%} of it", "40% of it"),
        ("{copies:counted copy, copies}", "2 copies"),
        ("It takes {seconds:seconds}[, of {none:seconds}].", "It takes 12.3 ms."),
        ("[{location:place}: ]{names:list| and }", "train.py:12: a and b"),
        ("{items:each item|; }", "<mm>; <add>"),
    ],
)
def test_a_template_is_filled(template: str, sentence: str) -> None:
    assert templates.filled(template, VALUES, {"item": "<{name}>"}, "/w") == sentence


def test_a_template_that_names_no_value_is_a_defect() -> None:
    with pytest.raises(KeyError):
        templates.filled("{shares:.0%}", VALUES, {})


def test_a_report_of_an_earlier_version_keeps_what_it_said() -> None:
    report = decode_report(json.dumps(outline_of_1_0()))
    [statement] = verdict.statements(report)
    assert statement.sentence.startswith("Training waits for data 78% of each step. Fetching")
    assert statement.place is not None and statement.place.line == 31
    evidence = report.diagnosis.findings[0].evidence
    assert [x.sentence for x in evidence] == ["Fetching is CPU time.", "One sample takes 10 ms."]
    shown = [
        x.text for s in first_screen.screen(report, "") for x in s.blocks if isinstance(x, Sentence)
    ]
    assert "One sample takes 10 ms." in shown and shown.count("Fetching is CPU time.") == 0


@pytest.mark.parametrize(
    "changes",
    [{"kind": "of another version"}, {"kind": "gpu", "share": None}, {"kind": "ranks_wait"}],
)
def test_a_verdict_that_cannot_be_worded_is_shown_as_it_was_stored(changes: dict[str, Any]) -> None:
    report = SAMPLES["loader_bound"]()
    stored_verdict = replace(report.diagnosis.verdict, **changes)
    known = replace(report.diagnosis, verdict=stored_verdict, sentence="As it was stored.")
    [statement] = verdict.statements(replace(report, diagnosis=known))
    assert statement.sentence == "As it was stored."
