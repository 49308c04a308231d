"""The check and fix files: found, validated, and shown as pages.

The folders are the registry; nothing is registered elsewhere. `python -m
torchdoctor.advice.catalogue docs` writes docs/checks, docs/fixes and docs/catalogue.md.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from torchdoctor.advice import thresholds
from torchdoctor.words.errors import UsageError
from torchdoctor.words.specs import CatalogueEntry, CeilingSpec, CheckSpec, FixSpec

BRANCHES = {
    "data_loader": "Is data loader time high?",
    "memcpy": "Is memory copy time high?",
    "communication": "Is communication time high? (several devices)",
    "gpu": "Is GPU utilization high?",
    "cpu": "Is CPU execution high?",
    "other": "Is anything else high?",
}
_WITHOUT_GPU = "gpu; without a GPU: cpu"
_LEGEND = f"""
"Branch": the question of the decision tree that the check answers (`torchdoctor explain --tree`).
"{_WITHOUT_GPU}": where no GPU trains there is none to ask about, and the check counts below
the branch cpu. "Treated by": fixes that torchdoctor offers, and tries where a run can; a check
without any says on its page what to do."""
_FIX_LEGEND = """
"Keeps results" says what a fix does to the program's results, and the risk is that as a number:

- 0, exactly: the same results, bit by bit, where the program is deterministic.
- 1, within rounding: the same mathematics in another order or with other random numbers.
- 2, lower precision: numbers with fewer digits; losses are compared.
- 3, changes training: another batch, optimizer or model; only with `--allow-training-changes`."""
TITLES_AT = 29  # column of the titles in `listing`
_CHECK_SECTIONS = ("What it means", "How it is measured", "Not to be confused with")
_UNTREATED_SECTIONS = ("What it means", "What to do", *_CHECK_SECTIONS[1:])
_APPLIED = {
    "launch": "as the program starts, before its own code makes what the fix changes",
    "between steps": "while the program trains, between two of its steps; it can be taken back",
    "by hand": "by you, in the source or the command; no run of torchdoctor applies it",
}
_FIX_SECTIONS = ("What it does", "Why it helps", "Risks", "Make it permanent", "Sources")
_TRIED_APART = "- Tried: by {}, with --allow-training-changes, last and apart from speed"
_PACKAGE = Path(__file__).parent.parent
_Spec = TypeVar("_Spec", bound=CatalogueEntry)


@functools.cache
def checks() -> dict[str, CheckSpec]:
    """Return the checks by id, in alphabetical order."""
    return _load("checks", "CHECK", CheckSpec)


@functools.cache
def fixes() -> dict[str, FixSpec]:
    """Return the fixes by id, in alphabetical order."""
    return _load("fixes", "FIX", FixSpec)


@functools.cache
def ceilings() -> dict[str, CeilingSpec]:
    """Return the ceilings by id, in alphabetical order."""
    return _load("fixes/ceilings", "CEILING", CeilingSpec)


def _load(folder: str, name: str, kind: type[_Spec]) -> dict[str, _Spec]:
    specs = {}
    for path in sorted((_PACKAGE / folder).glob("*.py")):
        if path.stem.startswith("_"):
            continue
        module = importlib.import_module(f"torchdoctor.{folder.replace('/', '.')}.{path.stem}")
        spec = vars(module).get(name)
        if not isinstance(spec, kind):
            raise TypeError(f"{path} lacks {name}, a {kind.__name__}.")
        specs[spec.ident] = spec
    return specs


def faults() -> list[str]:
    """Return a sentence for each fault of the files; the tests want none."""
    faulty = []
    for ident, check in checks().items():
        untreated = not _treating(ident)
        sections = _UNTREATED_SECTIONS if untreated else _CHECK_SECTIONS
        whom = f"{ident}, which no fix treats" if untreated else ident
        faulty += [f"check {whom}: {fault}" for fault in _page_faults(check.text, sections)]
        faulty += [f"check {ident}: {fault}" for fault in thresholds.faults(check)]
    for ident, fix in fixes().items():
        faulty += [f"fix {ident}: {fault}" for fault in _page_faults(fix.text, _FIX_SECTIONS)]
        faulty += [
            f"fix {ident} treats {check}, which is no check."
            for check in (*fix.treats, *fix.untried_needs)
            if check not in checks()
        ]
        if fix.when == "by hand" and not (fix.untried and fix.offers and fix.refusals):
            faulty.append(f"fix {ident} is by hand and lacks untried, offers or refusals.")
        if fix.when != "by hand" and (fix.apply is None or fix.example is None):
            faulty.append(f"fix {ident} lacks apply or example.")
        if not 0.0 < fix.p_helps < 1.0:
            faulty.append(f"fix {ident}: p_helps is no probability.")
    specs: list[CatalogueEntry] = [*checks().values(), *fixes().values()]
    names = [name for spec in specs for name in spec.also_known_as]
    faulty += [
        f"'{name}' is the name of several files."
        for name, number in Counter([*checks(), *fixes(), *names]).items()
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


def explain(ident: str) -> str:
    """Return the page of a check or fix, which may be named by a former id.

    Raises:
        UsageError: no such id; it names the nearest.
    """
    names = _names()
    if ident not in names:
        near = difflib.get_close_matches(ident, names, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise UsageError(
            f"There is no check or fix '{ident}'.{hint} torchdoctor explain --all lists them."
        )
    spec = names[ident]
    page = _check_page(spec) if isinstance(spec, CheckSpec) else _fix_page(spec)
    return page if ident == spec.ident else f"{ident} is a part of {spec.ident}.\n\n{page}"


def _names() -> dict[str, CheckSpec | FixSpec]:
    specs: list[CheckSpec | FixSpec] = [*checks().values(), *fixes().values()]
    names = {name: spec for spec in specs for name in spec.also_known_as}
    return names | {spec.ident: spec for spec in specs}


def why(ident: str) -> str | None:
    """Return the first paragraph of a fix's "Why it helps" as one line; None: no such fix."""
    page = fixes()[ident].text if ident in fixes() else ""
    _, _, reasons = page.partition("Why it helps\n------------\n")
    return " ".join(reasons.split("\n\n", 1)[0].split()) or None


def listing() -> str:
    """Return every id with its title, which begins at column `TITLES_AT`."""

    def rows(specs: Iterable[CatalogueEntry]) -> list[str]:
        return [f"  {spec.ident:<{TITLES_AT - 3}} {spec.title}" for spec in specs]

    return "\n".join(["Checks", *rows(checks().values()), "", "Fixes", *rows(fixes().values())])


def tree() -> str:
    """Return the decision tree with its checks, their thresholds, and the fixes that treat them."""
    lines = []
    for branch, question in BRANCHES.items():
        lines.append(question)
        if branch == "gpu":
            lines.append("  (without a GPU, the checks of this branch count below the next: cpu)")
        for ident, check in checks().items():
            if branch != check.branch:
                continue
            lines.append(f"  {ident}: {check.title}")
            if treating := _treating(ident):
                lines.append(f"      treated by {', '.join(treating)}")
    lines.append("Then: monitor and re-evaluate (the trials), finalize (the ranked table).")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return every generated page by its path below docs/."""
    texts = {f"checks/{ident}.md": _markdown(explain(ident)) for ident in checks()}
    texts |= {f"fixes/{ident}.md": _markdown(explain(ident)) for ident in fixes()}
    texts["catalogue.md"] = _index()
    return texts


def _treating(check: str) -> list[str]:
    """Return the ids of the fixes that treat a check."""
    return [ident for ident, fix in fixes().items() if check in fix.treats]


def _branch(check: CheckSpec) -> str:
    return _WITHOUT_GPU if check.branch == "gpu" else check.branch


def _check_page(check: CheckSpec) -> str:
    treating = ", ".join(_treating(check.ident))
    return "\n".join(
        [
            f"{check.ident} (check): {check.text}",
            "",
            "Facts",
            "-----",
            f"- Branch of the tree: {_branch(check)}",
            f"- Threshold: {thresholds.threshold(check)}",
            f"- Source of the threshold: {thresholds.source(check)}",
            f"- Treated by: {treating or 'no fix of torchdoctor: see What to do'}",
        ]
    )


def _fix_page(fix: FixSpec) -> str:
    but = f": {fix.keeps_but}" if fix.keeps_but else ""
    return "\n".join(
        [
            f"{fix.ident} (fix): {fix.text}",
            "",
            "Facts",
            "-----",
            f"- Treats: {', '.join(fix.treats) or 'nothing that slows a step'}",
            f"- Keeps results: {fix.keeps_results} (risk {fix.risk}){but}",
            f"- Applied: {fix.when} ({_APPLIED[fix.when]})",
            *([_TRIED_APART.format(fix.training.trial)] if fix.training else []),
            *([f"- Not tried in a run: {fix.untried}"] if fix.untried else []),
            *([f"- Also known as: {', '.join(fix.also_known_as)}"] if fix.also_known_as else []),
        ]
    )


def _markdown(page: str) -> str:
    first, rest = page.split("\n", 1)
    return f"# {first}\n{rest}\n"


def _index() -> str:
    lines = ["# Catalogue", "", "Generated from the check and fix files.", "", "## Checks"]
    lines += [*_LEGEND.splitlines(), ""]
    lines += ["| check | branch | treated by |", "| --- | --- | --- |"]
    for ident, check in checks().items():
        treating = [f"[{fix}](fixes/{fix}.md)" for fix in _treating(ident)]
        cells = f"[{ident}](checks/{ident}.md)", _branch(check), ", ".join(treating)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Fixes", *_FIX_LEGEND.splitlines(), ""]
    lines += ["| fix | what | keeps results | risk |", "| --- | --- | --- | --- |"]
    for ident, fix in fixes().items():
        row = f"[{ident}](fixes/{ident}.md)", fix.title, fix.keeps_results, str(fix.risk)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the pages into a folder, usually docs."""
    if len(arguments) != 1:
        print("usage: python -m torchdoctor.advice.catalogue FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    written = pages()
    for kind in ("checks", "fixes"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for page in (folder / kind).glob("*.md"):
            if f"{kind}/{page.name}" not in written:
                page.unlink()  # of a check or fix that is gone
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
