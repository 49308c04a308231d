"""The table of what is asked for: every id and every test that it names is there."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import coverage_rows
import pytest

from torchdoctor.advice import catalogue

ROOT = Path(__file__).parent.parent
ROWS = [row for rows in coverage_rows.TABLES.values() for row in rows]


@functools.cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.asked)
def test_every_id_and_every_test_that_a_row_names_exists(row: coverage_rows.Row) -> None:
    for named in row.tests:
        file, _, test = named.partition("::")
        assert test.partition("[")[0] in names_in(file), named
    known = set(catalogue.checks()) | set(catalogue.fixes())
    named = {*row.checks, *row.fixes}
    assert named - known <= coverage_rows.AWAITED
    assert not named & known & coverage_rows.AWAITED, "it is there now: take it out of AWAITED"
    assert named & known or named <= coverage_rows.AWAITED


def test_every_check_and_fix_is_asked_for_by_some_row() -> None:
    fixes, checks = catalogue.fixes(), catalogue.checks()
    named = {ident for row in ROWS for ident in (*row.fixes, *row.checks)}
    treated = {check for row in ROWS for i in row.fixes if i in fixes for check in fixes[i].treats}
    assert set(fixes) <= named
    # These say what goes on around the program, which no guide asks for.
    around = {"other-load", "work-outside-model", "cpu-execution"}
    assert set(checks) - named - treated <= around
