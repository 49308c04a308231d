"""The rows of `torchdoctor.coverage` as tables of a page.

Which checks, trials and offers there are is looked up in the catalogue, so that a page can never
claim more than the files hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from torchdoctor.coverage import TABLES, Row

_CHECK_TEST = "tests/checks/test_examples.py::test_fires"
_TRIED_TEST = "tests/fixes/test_fix_examples.py::test_with_the_fix"
_GPU_TEST = "tests/fixes/test_fix_examples.py::test_with_the_fix_on_a_gpu"
_OFFERED_TEST = "tests/fixes/test_fix_examples.py::test_is_offered_with_what_to_write"


_INTRODUCTION = """\
# Coverage

For who works on torchdoctor: what public guides to PyTorch performance and other profilers ask a
tool like this for, row by row, which check and which fix answers it, and which test shows that it
does. Generated from `torchdoctor/coverage.py`; the list for users is the [catalogue](catalogue.md).
"""


def page(checks: Mapping[str, ModuleType], fixes: Mapping[str, ModuleType]) -> str:
    """The page of its own that the tables are (Markdown)."""
    return _INTRODUCTION + "\n".join(tables(checks, fixes)) + "\n"


def tables(checks: Mapping[str, ModuleType], fixes: Mapping[str, ModuleType]) -> list[str]:
    """The tables as lines of Markdown.

    Args:
        checks: check modules by id.
        fixes: fix modules by id.
    """
    lines: list[str] = []
    for title, rows in TABLES.items():
        lines += ["", f"## {title}", ""]
        lines += ["| asked for | found by | tried | offered | shown by | lacking |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for row in rows:
            tried = [i for i in row.fixes if i in fixes and not _by_hand(fixes[i])]
            cells = [
                row.asked,
                ", ".join(f"[{i}](checks/{i}.md)" for i in found_by(row, checks, fixes)),
                ", ".join(f"[{i}](fixes/{i}.md)" for i in tried),
                ", ".join(
                    f"[{i}](fixes/{i}.md)" for i in row.fixes if i in fixes and i not in tried
                ),
                "<br>".join(f"`{test}`" for test in shown_by(row, checks, fixes)),
                _lacking(row, checks, fixes),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def found_by(
    row: Row, checks: Mapping[str, ModuleType], fixes: Mapping[str, ModuleType]
) -> list[str]:
    """Checks that find what the row asks for: its own, else those that its fixes treat."""
    named = [i for i in row.checks if i in checks]
    treated = [c for i in row.fixes if i in fixes for c in fixes[i].TREATS if c in checks]
    return named or list(dict.fromkeys(treated))


def shown_by(
    row: Row, checks: Mapping[str, ModuleType], fixes: Mapping[str, ModuleType]
) -> list[str]:
    """Tests that show it: of the files' own examples, and the row's."""
    tests = [f"{_CHECK_TEST}[{i}-0]" for i in row.checks if i in checks and checks[i].FIRES]
    for ident in row.fixes:
        if ident not in fixes:
            continue
        module = fixes[ident]
        if _by_hand(module):
            tests.append(f"{_OFFERED_TEST}[{ident}-0]")
        else:
            needs_gpu = getattr(module, "EXAMPLE_NEEDS", None) == "cuda"
            tests.append(f"{_GPU_TEST if needs_gpu else _TRIED_TEST}[{ident}]")
    return [*tests, *row.tests]


def _lacking(row: Row, checks: Mapping[str, ModuleType], fixes: Mapping[str, ModuleType]) -> str:
    absent = [i for i in (*row.checks, *row.fixes) if i not in checks and i not in fixes]
    said = [f"Not there: {', '.join(absent)}."] if absent else []
    return " ".join([*said, row.lacking] if row.lacking else said)


def _by_hand(module: ModuleType) -> bool:
    return getattr(module, "WHEN", "") == "by hand"
