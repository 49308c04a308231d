"""Sentences are made last: what a screen says does not hang on how a fact is worded."""

from __future__ import annotations

import ast
import inspect
import json
import re
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
from torchdoctor.reports.document import Sentence, prose
from torchdoctor.reports.vocabulary import vocabulary
from torchdoctor.schema import Location, Report
from torchdoctor.schema.figures import clean
from torchdoctor.schema.record_files import decode_report

CHECKS = catalogue.checks()
WORKLOADS = sorted(stored())
NAME = re.compile(r"<[^<>]*/\d+/[^<>]*>")
# Words that name a place and a share, as if that was what the facts are about.
ELSEWHERE = "At a.py:3, 99% of it: "
BEGIN = 40  # characters of a sentence: a long one is cut, a place may stand before its full stop
ALWAYS = {"share", "location", *vocabulary(SAMPLES["loader_bound"]())}


def shown(report: Report) -> list[str]:
    """Return the paragraphs of the first screen."""
    sections = first_screen.screen(report, "")
    return [x.text for section in sections for x in section.blocks if isinstance(x, Sentence)]


def worded(report: Report, begin: str = "") -> Report:
    """Return the report with the name of each fact, behind these words, as its sentence."""
    findings = [
        replace(
            finding,
            evidence=[
                replace(fact, sentence=f"{begin}<{finding.check}/{number}/{fact.fact}>.")
                for number, fact in enumerate(finding.evidence)
            ],
        )
        for finding in report.diagnosis.findings
    ]
    return replace(report, diagnosis=replace(report.diagnosis, findings=findings))


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
    named = [NAME.findall(text) for text in shown(worded(report))]
    other = shown(worded(report, ELSEWHERE))
    assert [NAME.findall(text) for text in other] == named
    sentences = {
        f"<{finding.check}/{number}/{fact.fact}>": prose(clean(fact.sentence))[:BEGIN]
        for finding in report.diagnosis.findings
        for number, fact in enumerate(finding.evidence)
    }
    for names, paragraph in zip(named, shown(report), strict=True):
        assert all(sentences[name].rstrip(".") in paragraph for name in names)


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
        named = {name for _, name, _, _ in Formatter().parse(sentences[fact]) if name}
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
    outline = outline_of_1_0()
    report = decode_report(json.dumps(outline))
    [statement] = verdict.statements(report)
    stored_first, stored_second = outline["diagnosis"]["findings"][0]["evidence"]
    assert statement.sentence.startswith(outline["diagnosis"]["sentence"].rstrip("."))
    assert statement.place is not None and statement.place.line == 31
    evidence = report.diagnosis.findings[0].evidence
    assert [x.sentence for x in evidence] == [stored_first, stored_second]
    told = " ".join(shown(report))
    assert stored_second in told
    assert told.count(stored_first.rstrip(".")) == 1


UNWORDED = [
    {"kind": "of another version"},
    {"kind": "gpu", "share": None},
    {"kind": "ranks_wait"},
]


@pytest.mark.parametrize("changes", UNWORDED)
def test_a_verdict_that_cannot_be_worded_is_shown_as_it_was_stored(changes: dict[str, Any]) -> None:
    report = SAMPLES["loader_bound"]()
    stored_verdict = replace(report.diagnosis.verdict, **changes)
    sentence = "As it was stored."
    known = replace(report.diagnosis, verdict=stored_verdict, sentence=sentence)
    [statement] = verdict.statements(replace(report, diagnosis=known))
    assert statement.sentence == sentence
