"""The check and fix files: found, validated, and shown as pages.

The folders are the registry; nothing is registered elsewhere. `python -m
torchdoctor.advice.catalogue docs` writes docs/checks, docs/fixes and docs/catalogue.md.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

from torchdoctor.advice import thresholds
from torchdoctor.words.errors import UsageError
from torchdoctor.words.specs import CheckSpec

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
RISKS = {"exactly": 0, "within rounding": 1, "lower precision": 2, "changes training": 3}
_CHECK_SECTIONS = ("What it means", "How it is measured", "Not to be confused with")
_UNTREATED_SECTIONS = ("What it means", "What to do", *_CHECK_SECTIONS[1:])
_APPLIED = {
    "launch": "as the program starts, before its own code makes what the fix changes",
    "between steps": "while the program trains, between two of its steps; it can be taken back",
    "by hand": "by you, in the source or the command; no run of torchdoctor applies it",
}
_FIX_SECTIONS = ("What it does", "Why it helps", "Risks", "Make it permanent", "Sources")
_FIX_NAMES = (
    "TREATS",
    "KEEPS_RESULTS",
    "WHEN",
    "refuses",
    "settings",
    "instruction",
)
_TRIED_NAMES = ("apply", "EXAMPLE", "EXAMPLE_SETTINGS", "EXAMPLE_WITHOUT", "EXAMPLE_WITH")
_CEILING_NAMES = ("WHOLE", "REMOVES", "branch", "share", "settings", "apply")
_TRIED_APART = "- Tried: by {}, with --allow-training-changes, last and apart from speed"
# A fix by hand is never run: why, and recordings that it is offered for, and refused for.
_BY_HAND_NAMES = ("UNTRIED", "OFFERS", "REFUSES")


@functools.cache
def checks() -> dict[str, CheckSpec]:
    """Return the checks by id, in alphabetical order."""
    specs: list[CheckSpec] = [module.CHECK for module in _load("checks").values()]
    return {spec.ident: spec for spec in specs}


@functools.cache
def fixes() -> dict[str, ModuleType]:
    """Fix modules by id, in alphabetical order."""
    return _load("fixes")


@functools.cache
def ceilings() -> dict[str, ModuleType]:
    """Modules of the ceilings by id, in alphabetical order."""
    return _load("fixes/ceilings")


def faults() -> list[str]:
    """What is wrong with the files, one sentence each; the tests want none."""
    found = []
    for ident, check in checks().items():
        untreated = not _treating(ident)
        sections = _UNTREATED_SECTIONS if untreated else _CHECK_SECTIONS
        whom = f"{ident}, which no fix treats" if untreated else ident
        found += [f"check {whom}: {fault}" for fault in _page_faults(check.text, sections)]
        found += [f"check {ident}: {fault}" for fault in thresholds.faults(check)]
    for ident, module in fixes().items():
        missing = [name for name in _FIX_NAMES if not hasattr(module, name)]
        found += [f"fix {ident} lacks {name}." for name in missing]
        page = inspect.getdoc(module) or ""
        found += [f"fix {ident}: {fault}" for fault in _page_faults(page, _FIX_SECTIONS)]
        needed: tuple[str, ...] = _BY_HAND_NAMES if is_by_hand(module) else _TRIED_NAMES
        found += [f"fix {ident} lacks {name}." for name in needed if not hasattr(module, name)]
        found += [
            f"fix {ident} treats {check}, which is no check."
            for check in module.TREATS
            if check not in checks()
        ]
        if module.KEEPS_RESULTS not in RISKS:
            found.append(f"fix {ident}: KEEPS_RESULTS is '{module.KEEPS_RESULTS}'.")
    found += [
        f"ceiling {ident} lacks {name}."
        for ident, module in ceilings().items()
        for name in _CEILING_NAMES
        if not hasattr(module, name)
    ]
    return found


def is_by_hand(module: ModuleType) -> bool:
    """Whether a fix is offered as code and never run."""
    return getattr(module, "WHEN", "") == "by hand"


def _page_faults(page: str, sections: tuple[str, ...]) -> list[str]:
    """Return a sentence for each fault of a page."""
    found = [] if page.split("\n", 1)[0].endswith((".", "?")) else ["its title is no sentence."]
    begins = [page.find(f"\n\n{name}\n{'-' * len(name)}") for name in sections]
    for name, begin, end in zip(sections, begins, [*begins[1:], len(page)], strict=True):
        if begin < 0:
            found.append(f"it has no section '{name}'.")
        elif 0 <= end < begin:
            found.append(f"its section '{name}' is out of order.")
        elif end >= 0 and not page[begin + 2 * len(name) + 3 : end].strip():
            found.append(f"its section '{name}' is empty.")
    return found


def risk(ident: str) -> int:
    """A fix's risk: 0 same result, 1 rounding or order, 2 precision, 3 changes training."""
    return RISKS[fixes()[ident].KEEPS_RESULTS]


def explain(ident: str) -> str:
    """A check's or fix's page.

    Raises:
        UsageError: no such id; it names the nearest.
    """
    if ident in checks():
        return _check_page(checks()[ident])
    if ident in fixes():
        return _fix_page(ident, fixes()[ident])
    near = difflib.get_close_matches(ident, [*checks(), *fixes()], 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise UsageError(
        f"There is no check or fix '{ident}'.{hint} torchdoctor explain --all lists them."
    )


def why(ident: str) -> str | None:
    """The first paragraph of a fix's "Why it helps", as one line; None: there is no such fix."""
    page = inspect.getdoc(fixes()[ident]) if ident in fixes() else None
    _, _, rest = (page or "").partition("Why it helps\n------------\n")
    return " ".join(rest.split("\n\n", 1)[0].split()) or None


def listing() -> str:
    """Every id with its title, which begins at column `TITLES_AT`."""

    def row(ident: str, title: str) -> str:
        return f"  {ident:<{TITLES_AT - 3}} {title}"

    lines = ["Checks", *(row(check.ident, check.title) for check in checks().values())]
    lines += ["", "Fixes", *(row(ident, title(module)) for ident, module in fixes().items())]
    return "\n".join(lines)


def tree() -> str:
    """The decision tree with its checks, their thresholds, and the fixes that treat them."""
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


def title(module: ModuleType) -> str:
    """The first line of a file's page."""
    return (inspect.getdoc(module) or "").split("\n", 1)[0]


def pages() -> dict[str, str]:
    """Every generated page by its path below docs/."""
    found = {f"checks/{ident}.md": _markdown(explain(ident)) for ident in checks()}
    found |= {f"fixes/{ident}.md": _markdown(explain(ident)) for ident in fixes()}
    found["catalogue.md"] = _index()
    return found


def _load(folder: str) -> dict[str, ModuleType]:
    found = {}
    for path in sorted((Path(__file__).parent.parent / folder).glob("*.py")):
        if not path.stem.startswith("_"):
            module = importlib.import_module(f"torchdoctor.{folder.replace('/', '.')}.{path.stem}")
            found[path.stem.replace("_", "-")] = module
    return found


def _treating(check: str) -> list[str]:
    """Ids of the fixes that treat it."""
    return [fix for fix, module in fixes().items() if check in module.TREATS]


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


def _kept(fix: ModuleType) -> str:
    """What it keeps, its risk, and `KEEPS_BUT`: what the class does not say of this fix."""
    but = f": {fix.KEEPS_BUT}" if hasattr(fix, "KEEPS_BUT") else ""
    return f"{fix.KEEPS_RESULTS} (risk {RISKS[fix.KEEPS_RESULTS]}){but}"


def _fix_page(ident: str, module: ModuleType) -> str:
    return "\n".join(
        [
            f"{ident} (fix): {inspect.getdoc(module)}",
            "",
            "Facts",
            "-----",
            f"- Treats: {', '.join(module.TREATS) or 'nothing that slows a step'}",
            f"- Keeps results: {_kept(module)}",
            f"- Applied: {module.WHEN} ({_APPLIED[module.WHEN]})",
            *([_TRIED_APART.format(module.TRIAL)] if hasattr(module, "TRIAL") else []),
            *([f"- Not tried in a run: {module.UNTRIED}"] if hasattr(module, "UNTRIED") else []),
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
    for ident, module in fixes().items():
        kept = module.KEEPS_RESULTS
        lines.append(f"| [{ident}](fixes/{ident}.md) | {title(module)} | {kept} | {RISKS[kept]} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the pages into the folder given (docs)."""
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
