"""Damaged files of every kind: an answer or one sentence, never a traceback or a process that dies.

Cases of `benchmarks/fuzz.py`; `--only CASE` makes one again.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent.parent / "benchmarks" / "fuzz.py"
# Cases that once ended in a traceback, or in a report that could not be read again.
ONCE_FAILED = ["trace:1324", "trace:6193", "report:6", "report:22", "report:31", "report:316"]
SEVERAL = """
import sys
sys.path.insert(0, sys.argv[1])
import fuzz
for case in sys.argv[2:]:
    kind, _, number = case.partition(":")
    fuzz.piece(kind, int(number), int(number) + 1, 0, None)
"""


@pytest.mark.parametrize(("kind", "count"), [("traces", 60), ("reports", 25)])
def test_damaged_files_are_answered_or_refused_in_one_sentence(kind: str, count: int) -> None:
    words = [sys.executable, str(FUZZ), f"--{kind}", str(count), "--jobs", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_once_failed() -> None:
    words = [sys.executable, "-c", SEVERAL, str(FUZZ.parent), *ONCE_FAILED]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["begun"] for line in lines if "begun" in line] == ONCE_FAILED
    assert [line for line in lines if "begun" not in line] == []
