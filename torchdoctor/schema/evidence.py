"""A fact as data: `reports` alone makes a sentence of it, by a template of the fact's check."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from torchdoctor.schema.location import Location


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One fact that a finding, or the verdict, rests on."""

    fact: str  #: Which fact it is, among those of its check; its sentence is made by this.
    #: Figures and names that it states; `message` is what a program or a library said of itself.
    values: dict[str, Any] = field(default_factory=dict)
    share: float | None = None  #: Share of the step that it states; null: it states none.
    location: Location | None = None  #: Place in the source that it names; null: it names none.
    sentence: str = ""  #: The same in words, for readers.


@dataclass(frozen=True, kw_only=True)
class Remark:
    """What weakens a report."""

    severity: Annotated[str, "detail", "beware"]  #: beware: it may change a decision.
    fact: str  #: Which remark it is; "said": a sentence of an earlier version.
    values: dict[str, Any] = field(default_factory=dict)  #: Figures and names that it states.
    of: str = ""  #: The trace or the version that it is of, by its name; empty: the report's own.
    sentence: str = ""  #: The same in words, for readers.


def fact(
    ident: str, *, share: float | None = None, location: Location | None = None, **values: Any
) -> Evidence:
    """Return a fact with its values, of which None is not known or not there."""
    return Evidence(fact=ident, values=values, share=share, location=location)


def message(text: str) -> Evidence:
    """Return a text that a program, a library or an error gave as a fact."""
    return fact("message", message=text)


def within(evidence: Evidence) -> dict[str, Any]:
    """Return a fact as a value of another one, whose template tells it by `{name:fact}`."""
    return {"fact": evidence.fact, "values": evidence.values}


def as_remark(evidence: Evidence, severity: str = "detail", of: str = "") -> Remark:
    """Return a fact as a remark; one of an earlier report keeps the sentence that it is."""
    return Remark(
        severity=severity,
        fact=evidence.fact,
        values=evidence.values,
        of=of,
        sentence=evidence.sentence,
    )


def each_once(facts: Iterable[Evidence]) -> list[Evidence]:
    """Return facts in their order, without those that stand there already."""
    once: list[Evidence] = []
    for evidence in facts:
        if evidence not in once:
            once.append(evidence)
    return once
