"""What may be wrong with check and fix files."""

from __future__ import annotations

from collections import Counter

from torchdoctor.advice import catalogue
from torchdoctor.schema.specs import CatalogueEntry

_CHECK_SECTIONS = ("What it means", "How it is measured", "Not to be confused with")
_UNTREATED_SECTIONS = ("What it means", "What to do", *_CHECK_SECTIONS[1:])
_LONGEST_NAME = 30  # characters, beside its settings in a cell of 44
_FIX_SECTIONS = ("What it does", "Why it helps", "Risks", "Make it permanent", "Sources")


def faults() -> list[str]:
    """Return a sentence for each fault of the check and fix files."""
    faulty = []
    for ident, check in catalogue.checks().items():
        page = catalogue.explain(ident).rsplit("\nFacts\n", 1)[1]
        untreated = not any(ident in fix.treats for fix in catalogue.fixes().values())
        sections = _UNTREATED_SECTIONS if untreated else _CHECK_SECTIONS
        whom = f"{ident}, which no fix treats" if untreated else ident
        faulty += [f"check {whom}: {fault}" for fault in _page_faults(check.text, sections)]
        if "Source of the threshold: torchdoctor's own" not in page and "://" not in page:
            faulty.append(f"check {ident}: nobody published '{check.source}'.")
    for ident, fix in catalogue.fixes().items():
        faulty += [f"fix {ident}: {fault}" for fault in _page_faults(fix.text, _FIX_SECTIONS)]
        faulty += [
            f"fix {ident} treats {check}, which is no check."
            for check in (*fix.treats, *fix.untried_needs)
            if check not in catalogue.checks()
        ]
        if fix.untried and not (fix.offers and fix.refusals):
            faulty.append(f"fix {ident} is by hand and lacks offers or refusals.")
        if not fix.untried and (fix.apply is None or fix.example is None):
            faulty.append(f"fix {ident} lacks apply or example.")
        if not 0 < len(fix.name) <= _LONGEST_NAME:
            faulty.append(f"fix {ident}: its name fits in no table.")
        if not 0.0 < fix.p_helps < 1.0:
            faulty.append(f"fix {ident}: p_helps is no probability.")
    specs: list[CatalogueEntry] = [*catalogue.checks().values(), *catalogue.fixes().values()]
    names = [name for spec in specs for name in spec.also_known_as]
    names += [fix.name for fix in catalogue.fixes().values() if fix.name != fix.ident]
    faulty += [
        f"'{name}' is the name of several files."
        for name, number in Counter([*catalogue.checks(), *catalogue.fixes(), *names]).items()
        if number > 1
    ]
    return faulty


def _page_faults(page: str, sections: tuple[str, ...]) -> list[str]:
    """Return a sentence for each fault of a page."""
    faulty = [] if page.split("\n", 1)[0].endswith((".", "?")) else ["its title is no sentence."]
    begins = [page.find(f"\n\n{name}\n{'-' * len(name)}") for name in sections]
    for name, begin, end in zip(sections, begins, [*begins[1:], len(page)], strict=True):
        if begin < 0:
            faulty.append(f"it has no section '{name}'.")
        elif 0 <= end < begin:
            faulty.append(f"its section '{name}' is out of order.")
        elif end >= 0 and not page[begin + 2 * len(name) + 3 : end].strip():
            faulty.append(f"its section '{name}' is empty.")
    return faulty
