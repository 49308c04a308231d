"""The table of what is asked for: every id and every test that it names is there."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from torchdoctor import catalogue, coverage, coverage_tables

ROOT = Path(__file__).parent.parent
ROWS = [row for rows in coverage.TABLES.values() for row in rows]


@functools.cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.asked)
def test_every_test_that_a_row_names_exists(row: coverage.Row) -> None:
    for named in coverage_tables.shown_by(row, catalogue.checks(), catalogue.fixes()):
        file, _, test = named.partition("::")
        assert test.partition("[")[0] in names_in(file), named


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.asked)
def test_every_id_exists_or_is_said_to_be_awaited(row: coverage.Row) -> None:
    known = set(catalogue.checks()) | set(catalogue.fixes())
    named = {*row.checks, *row.fixes}
    assert named - known <= coverage.AWAITED
    assert not named & known & coverage.AWAITED, "it is there now: take it out of AWAITED"
    assert named & known or named <= coverage.AWAITED


def test_every_check_and_fix_is_asked_for_by_some_row() -> None:
    fixes, checks = catalogue.fixes(), catalogue.checks()
    named = {i for row in ROWS for i in (*row.fixes, *coverage_tables.found_by(row, checks, fixes))}
    assert set(fixes) <= named
    # These say what goes on around the program, which no guide asks for.
    around = {"other-load", "work-outside-model", "cpu-execution"}
    assert set(checks) - named <= around


def test_what_is_only_offered_is_never_called_tried() -> None:
    page = "\n".join(coverage_tables.tables(catalogue.checks(), catalogue.fixes()))
    for line in page.splitlines():
        cells = line.split(" | ")
        if len(cells) < 6 or "](fixes/" not in line:
            continue
        for ident, module in catalogue.fixes().items():
            if catalogue.is_by_hand(module):
                assert f"[{ident}]" not in cells[2]
