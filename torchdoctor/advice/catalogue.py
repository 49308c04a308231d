"""The check and fix files: found, validated, and shown as pages.

The folders are the registry; nothing is registered elsewhere.
"""

import difflib
import functools
import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from torchdoctor.schema import BRANCHES, AblationSpec, CatalogueEntry, CheckSpec, FixSet, FixSpec
from torchdoctor.schema.errors import UsageError
from torchdoctor.schema.record_files import parsed_toml

WITHOUT_GPU = "gpu; without a GPU: cpu"
TITLES_AT = 29  # column of the titles in `listing`
_APPLIED = {
    "launch": "as the program starts, before its own code creates what the fix changes",
    "between steps": "while the program trains, between two of its steps; it can be taken back",
    "by hand": "by you, in the source or the command; no run of torchdoctor applies it",
}
_TRIED_APART = "by loss, with --allow-training-changes, after the fixes for speed"
_PACKAGE = Path(__file__).parent.parent
_PUBLISHED = parsed_toml(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
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
def ceilings() -> dict[str, AblationSpec]:
    """Return the ceilings by id, in alphabetical order."""
    return _load("fixes/ablations", "ABLATION", AblationSpec)


def _load(folder: str, name: str, kind: type[_Spec]) -> dict[str, _Spec]:
    specs = {}
    for path in sorted((_PACKAGE / folder).glob("[!_]*.py")):
        module = importlib.import_module(f"torchdoctor.{folder.replace('/', '.')}.{path.stem}")
        spec = vars(module).get(name)
        if not isinstance(spec, kind):
            raise TypeError(f"{path} lacks {name}, a {kind.__name__}.")
        specs[spec.ident] = spec
    return specs


def check_for_watch(question: str) -> CheckSpec:
    """Return the check that answers a question of a watched run: see `CheckSpec.watch_asks`."""
    return next(check for check in checks().values() if check.watch_asks == question)


def explain(ident: str) -> str:
    """Return the page of a check or fix, by its id, name or former id; else raise UsageError."""
    specs: list[CheckSpec | FixSpec] = [*checks().values(), *fixes().values()]
    names = {name: spec for spec in specs for name in spec.also_known_as}
    names |= {spec.ident: spec for spec in specs} | {fix.name: fix for fix in fixes().values()}
    if ident not in names:
        near = difflib.get_close_matches(ident, names, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise UsageError(
            f"There is no check or fix '{ident}'.{hint} torchdoctor explain --all lists them."
        )
    spec = names[ident]
    page = _check_page(spec) if isinstance(spec, CheckSpec) else _fix_page(spec)
    if ident in spec.also_known_as:
        return f"{ident} is a part of {spec.ident}.\n\n{page}"
    return page


def why(ident: str) -> str | None:
    """Return the first paragraph of a fix's "Why it helps" as one line; None: no such fix."""
    page = fixes()[ident].text if ident in fixes() else ""
    reasons = page.partition("Why it helps\n------------\n")[2]
    return " ".join(reasons.partition("\n\n")[0].split()) or None


def name(fix: str) -> str:
    """Return the name of a fix, or its id where there is no such fix."""
    return fixes()[fix].name if fix in fixes() else fix


def named(several: FixSet) -> FixSet:
    """Return a set with the names of its fixes in place of their ids, to be shown."""
    return FixSet((name(fix), settings) for fix, settings in several.items())


def listing() -> str:
    """Return every id with its title, which begins at column `TITLES_AT`."""

    def rows(specs: Iterable[CatalogueEntry]) -> list[str]:
        return [f"  {spec.ident:<{TITLES_AT - 3}} {spec.title}" for spec in specs]

    return "\n".join(["Checks", *rows(checks().values()), "", "Fixes", *rows(fixes().values())])


def tree() -> str:
    """Return the decision tree with its checks, their thresholds, and the fixes that treat them."""
    lines = []
    questions: dict[str, str] = {
        check.branch: check.question.text for check in checks().values() if check.question
    }
    for branch in BRANCHES:
        lines.append(questions.get(branch, "Is anything else high?"))
        if branch == "gpu":
            lines.append("  (without a GPU, the checks of this branch belong to the next one: cpu)")
        for ident, check in checks().items():
            if branch == check.branch:
                lines.append(f"  {ident}: {check.title}")
                by = ", ".join(treating(ident))
                lines += [f"      treated by {by}"] * bool(by)
    lines.append("Then: monitor and re-evaluate (the trials), finalize (the ranked table).")
    return "\n".join(lines)


def treating(check: str) -> list[str]:
    """Return the ids of the fixes that treat a check."""
    return [ident for ident, fix in fixes().items() if check in fix.treats]


def branch_of(check: CheckSpec) -> str:
    """Return the branch of the tree that a check counts below."""
    return WITHOUT_GPU if check.branch == "gpu" else check.branch


def _check_page(check: CheckSpec) -> str:
    factor = 100 if check.unit.startswith("%") else 1
    addresses = ", ".join(url for name, url in _PUBLISHED.items() if name in check.source)
    source = re.sub("^torchdoctor", "torchdoctor's own", check.source)
    facts = {
        "Branch of the tree": branch_of(check),
        "Threshold": f"{check.threshold * factor:.9g} {check.unit}",
        "Source of the threshold": f"{source} ({addresses})" if addresses else source,
        "Treated by": ", ".join(treating(check.ident)) or "no fix of torchdoctor (see What to do)",
    }
    return _page(f"{check.ident} (check): {check.text}", facts)


def _fix_page(fix: FixSpec) -> str:
    but = f": {fix.keeps_but}" if fix.keeps_but else ""
    facts = {
        "Name in reports": fix.name,
        "Treats": ", ".join(fix.treats) or "nothing that slows a step",
        "Keeps results": f"{fix.keeps_results} (risk {fix.risk}){but}",
        "Applied": f"{fix.applied} ({_APPLIED[fix.applied]})",
        "Tried": _TRIED_APART if fix.training and not fix.untried else "",
        "Not tried in a run": fix.untried,
        "No bound is told": fix.unbounded,
        "Also known as": ", ".join(fix.also_known_as),
    }
    return _page(f"{fix.ident} (fix): {fix.text}", facts)


def _page(text: str, facts: dict[str, str]) -> str:
    lines = [f"- {name}: {fact}" for name, fact in facts.items() if fact]
    return "\n".join([text, "", "Facts", "-----", *lines])
