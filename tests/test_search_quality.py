"""The benchmark of the search: what is there counts, and what was cut off is run again."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parent.parent / "benchmarks" / "search_quality.py"


@pytest.fixture(scope="module")
def quality() -> Any:
    sys.path.insert(0, str(_FILE.parent))  # what the benchmarks share lies beside it
    spec = importlib.util.spec_from_file_location("search_quality", _FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their types up
    spec.loader.exec_module(module)
    return module


def gave(estimate: float) -> dict[str, float]:
    return {"estimate": estimate, "low": 0.95 * estimate, "high": 1.05 * estimate}


def test_the_share_is_of_the_logarithm_of_the_best(quality: Any) -> None:
    assert quality.reached_share(gave(2.0), gave(4.0)) == pytest.approx(0.5)
    assert quality.reached_share(None, gave(4.0)) == 0.0, "it recommended nothing"
    assert quality.reached_share(gave(0.9), gave(4.0)) == 0.0
    assert quality.reached_share(gave(4.0), gave(2.0)) == 1.0, "never more than all"
    assert quality.reached_share(None, None) is None
    assert quality.reached_share(gave(1.0), gave(1.01)) is None, "there was nothing to gain"
    chance = {"estimate": 1.04, "low": 0.9, "high": 1.2}
    assert quality.reached_share(None, chance) is None, "what it found may be nothing"


def test_a_line_that_was_cut_off_spoils_no_other(quality: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    row = {"kind": "nulls", "workload": "tuned", "candidates": 8, "confirmed": ["null-3"]}
    quality.append(out, row)
    out.write_text(out.read_text() + '{"kind": "nu')
    quality.append(out, row)
    assert quality.rows_of(out) == [row, row]
    [line] = [line for line in quality.table([row, row]).splitlines() if "confirmed" in line]
    assert re.findall(r"\d+", line) == ["16", "2"], "of 16 candidates two"


def test_the_table_shows_both_ways(quality: Any) -> None:
    row = {
        "kind": "run",
        "workload": "slow_decode",
        "budget_s": 60.0,
        "search": "loader-workers num_workers=2",
        "exhaustive": "loader-workers num_workers=4",
        "search_speedup": gave(math.e),
        "exhaustive_speedup": gave(math.e**2),
    }
    text = quality.table([row])
    [shown] = [line for line in text.splitlines() if line.startswith("| slow_decode")]
    cells = [cell.strip() for cell in shown.strip("| ").split("|")]
    assert cells[0].endswith("60 s") and cells[-1] == "50%"
    for cell, kept, gain in zip(
        cells[1:3], ("search", "exhaustive"), ("2.72x", "7.39x"), strict=True
    ):
        assert cell.startswith(f"{row[kept]} {gain}")
    average = text.splitlines()[-1]
    assert "50%" in average, "of what the exhaustive search found"
