"""Faults planted in real runs; `benchmarks/faults.py` has the whole matrix."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from fault_cases import FAULTS  # noqa: E402
from faults import PAGE, attempt  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.in_suite])
def test_a_fault_costs_a_measurement_and_nothing_else(name: str) -> None:
    row = attempt(name)
    assert row.holds, row.happens


def test_every_fault_stands_on_the_page_and_holds() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(FAULTS) >= 40
    assert [name for name in FAULTS if f"| {name}" not in page] == []
    assert "not tried" not in page and "NOT AS PROMISED" not in page
