"""The pages of checks and fixes, and that for agents: `catalogue_pages.py docs` writes them."""

import sys
from pathlib import Path

from torchdoctor.advice import catalogue
from torchdoctor.cli import agent_guide

_WITHOUT_GPU = catalogue.WITHOUT_GPU
_CHECKS = f"""\
# Catalogue

Generated from the check and fix files.

## Checks

"Branch": the question of the decision tree that the check answers (`torchdoctor explain --tree`).
"{_WITHOUT_GPU}": without a GPU the check counts below the branch cpu. "Treated by": fixes that
torchdoctor offers, and tries if a run can; if there is none, the page of the check says what to do.

| check | branch | treated by |
| --- | --- | --- |"""
_FIXES = """
## Fixes

"Keeps results" says what a fix does to the program's results, and the risk is that as a number:

- 0, exactly: the same results, bit by bit, where the program is deterministic.
- 1, within rounding: the same mathematics in another order or with other random numbers.
- 1, corrects results: outputs that were wrong change; told as a correction.
- 2, lower precision: numbers with fewer digits; losses are compared.
- 3, changes training: another batch, optimizer or model; only with `--allow-training-changes`.

| fix | what | keeps results | risk |
| --- | --- | --- | --- |"""


def pages() -> dict[str, str]:
    """Return every generated page by its path below docs/."""
    texts = {f"checks/{ident}.md": _markdown(ident) for ident in catalogue.checks()}
    texts |= {f"fixes/{ident}.md": _markdown(ident) for ident in catalogue.fixes()}
    guide = agent_guide.page()
    return {**texts, "catalogue.md": _index(), "agents.md": guide, "llms.txt": guide}


def _markdown(ident: str) -> str:
    first, rest = catalogue.explain(ident).split("\n", 1)
    return f"# {first}\n{rest}\n"


def _index() -> str:
    lines = [_CHECKS]
    for ident, check in catalogue.checks().items():
        treating = ", ".join(f"[{fix}](fixes/{fix}.md)" for fix in catalogue.treating(ident))
        lines.append(
            f"| [{ident}](checks/{ident}.md) | {catalogue.branch_of(check)} | {treating} |"
        )
    lines.append(_FIXES)
    for ident, fix in catalogue.fixes().items():
        name, kept = f"[{ident}](fixes/{ident}.md)", f"{fix.keeps_results} | {fix.risk}"
        lines.append(f"| {name} | {fix.title} | {kept} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the pages into a folder, usually docs."""
    if len(arguments) != 1:
        print("usage: catalogue_pages.py FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    written = pages()
    for kind in ("checks", "fixes"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for page in (folder / kind).glob("*.md"):
            page.unlink()  # some are of checks and fixes that are gone
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
