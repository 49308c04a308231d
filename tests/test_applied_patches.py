"""The benchmark that applies patches by hand: its timer sees steps, its rows say what came out."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from light_torch import LIGHT

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import applied_patches  # noqa: E402
from applied_patches import Program, Row, compare_times, turns  # noqa: E402
from step_times import timed  # noqa: E402

TRAINS = f"""
import sys
import torch
{LIGHT}often, seldom = (torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1) for _ in "12")
for number in range(int(sys.argv[1])):
    often.step()
    if number % 5 == 0:
        seldom.step()
assert len(sys.argv) < 3, "as asked for"
"""


def times_of(tmp_path: Path, *arguments: str, most_steps: int = 0) -> object:
    (tmp_path / "train.py").write_text(TRAINS)
    scratch = tmp_path / f"times{len(list(tmp_path.iterdir()))}"
    return timed(
        [sys.executable, "train.py", *arguments], tmp_path, dict(os.environ), scratch, 60.0,
        most_steps,
    )  # fmt: skip


@pytest.mark.slow
def test_the_optimizer_that_steps_most_often_is_timed_in_the_untouched_program(
    tmp_path: Path,
) -> None:
    found = times_of(tmp_path, "20")
    assert (len(found.times_s), found.ended) == (20, "by itself")
    assert found.times_s == sorted(found.times_s)
    found = times_of(tmp_path, "1000000000", most_steps=30)
    assert (len(found.times_s), found.ended) == (30, "stopped"), "an endless program ends too"
    found = times_of(tmp_path, "20", "fail")
    assert found.ended == "failed" and "as asked for" in found.said


def ends(*step_s: float) -> list[float]:
    return [sum(step_s[:number]) for number in range(len(step_s))]


def test_only_steps_that_all_runs_did_are_compared_without_the_first_half() -> None:
    slow, fast = ends(*[2.0] * 40), ends(*[9.0] * 10, *[1.0] * 10)
    row = Row(program="x", budget_s=1.0, printed={"estimate": 2.1, "low": 1.9, "high": 2.3})
    compare_times([slow, slow], [fast, fast], row)
    assert row.steps == 20, "as many as the shortest run"
    assert row.measured is not None
    assert row.measured["estimate"] == pytest.approx(2.0), "what happens once is left out"
    assert (row.within, row.overlaps, row.gains) == (True, True, True)
    row = Row(program="x", budget_s=1.0, printed={"estimate": 3.0, "low": 2.9, "high": 3.1})
    compare_times([slow, slow], [fast, fast], row)
    assert (row.within, row.overlaps) == (False, False)


def test_drift_falls_on_both_alike() -> None:
    order = turns(4)
    places = {
        name: sum(place for place, one in enumerate(order) if one == name) for name in set(order)
    }
    assert len(order) == 8 and len(set(places.values())) == 1


def test_a_copy_is_a_repository_that_is_committed_and_clean(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "torchdoctor-runs").mkdir(parents=True)
    (source / "train.py").write_text("x = 1\n")
    (source / "data.bin").write_text("1")
    program = Program(
        name="one", source=source, copied_to=".", folder="", command=["train.py"]
    )  # fmt: skip
    applied_patches.repository(program, tmp_path / "copy", sys.executable)
    applied_patches._git(tmp_path, "clone", "--quiet", "copy", "checkout")
    names = {path.name for path in (tmp_path / "checkout").iterdir()}
    assert names == {".git", "train.py", "data.bin"}, "with its data, without old runs"


def test_the_table_counts_patches_and_keeps_the_newest_row() -> None:
    old = vars(Row(program="x", budget_s=1.0, handed_out="patch", said="old"))
    new = old | {"to_the_end": True, "gains": True, "within": True, "said": ""}
    by_hand = vars(Row(program="y", budget_s=1.0, handed_out="by-hand", fixes=["gc-freeze"]))
    shown = applied_patches.table([old, new, by_hand])
    assert shown.count("| x |") == 1 and "old" not in shown
    counts = [int(count) for count in re.findall(r"\b\d+\b", shown.splitlines()[-1])]
    assert counts[:3] == [1, 1, 1], "recommended, ran to the end, gain"


def test_a_public_script_imports_from_its_own_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patch of what the script imports would otherwise change nothing."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # which this sets, and the test takes back
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    scripts = tmp_path / "clones/minGPT/projects/adder"
    scripts.mkdir(parents=True)
    (scripts / "adder.py").write_text("import mingpt\n")
    (tmp_path / "clones/minGPT/mingpt").mkdir()
    (tmp_path / "clones/minGPT/mingpt/__init__.py").write_text("")
    program = applied_patches.of_clones(tmp_path / "clones")["minGPT"]
    applied_patches.repository(program, tmp_path / "copy", sys.executable)
    paths = program.environment(tmp_path / "copy")["PYTHONPATH"].split(os.pathsep)
    assert paths == [str(tmp_path / "copy/minGPT")]
    assert (tmp_path / "copy/minGPT/mingpt/__init__.py").is_file()
    assert (tmp_path / "copy" / program.folder / program.command[0]).is_file()
