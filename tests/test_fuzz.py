"""Damaged files of every kind: an answer or one sentence, never a traceback or a process that dies.

Cases of `benchmarks/fuzz.py`; `--only CASE` makes one again.
"""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent.parent / "benchmarks" / "fuzz.py"


@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [("traces", 0, 110), ("traces", 20_000, 110), ("reports", 0, 40), ("reports", 20_000, 40)],
)
def test_damaged_files_are_answered_or_refused_in_one_sentence(
    kind: str, first: int, count: int
) -> None:
    words = [sys.executable, str(FUZZ), f"--{kind}", str(count), "--first", str(first)]
    done = subprocess.run([*words, "--jobs", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Cases that once ended in a traceback, or in a report that could not be read again.
@pytest.mark.parametrize(
    "case", ["trace:1324", "trace:6193", "report:6", "report:22", "report:31", "report:316"]
)
def test_what_once_failed(case: str) -> None:
    words = [sys.executable, str(FUZZ), "--only", case]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
